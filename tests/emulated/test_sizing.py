"""S2, S14, on the real driver over an emulated device: what is free, what neighbours do, what a slice has."""

from __future__ import annotations

from tests.emulated.vendor import PROFILE, opened
from tests.emulator.control import Control
from vmmcache import ExtensibleTensor, MemoryBudget
from vmmcache.cache.sizing import estimated_budget, measured_budget
from vmmcache.cache.snapshots import MemoryReader
from vmmcache.units import GIB, MIB


def test_what_is_committed_is_charged_once(control: Control) -> None:
    """I11: the very bytes that the device misses are those that the tensor says it has."""
    driver = opened(1)
    reader = MemoryReader(driver)
    start = reader.snapshot("start")
    with ExtensibleTensor(64 * driver.granule, driver) as tensor:
        before = measured_budget(MemoryBudget(), start, reader.snapshot("warm", tensor.physical_bytes), 0)
        tensor.commit(13 * driver.granule)
        after = measured_budget(MemoryBudget(), start, reader.snapshot("warm", tensor.physical_bytes), 0)
    assert (after.non_kv, after.headroom) == (0, start.free)
    assert before == after
    assert after.nbytes == start.free - 256 * MIB
    assert control.used(1) == 0 or PROFILE == "hip-7.2"


def test_neighbours_take_and_free(control: Control) -> None:
    """Scenarios 4 and 5: clamps, no assertion."""
    reader = MemoryReader(opened(1))
    assert reader.transient_peak() == 0
    assert "no peak was seen" in reader.peak_source
    control.set(other_use=6 * GIB)
    start = reader.snapshot("start")
    control.set(other_use=15 * GIB)
    crowded = reader.snapshot("warm")
    control.set(other_use=0)
    empty = reader.snapshot("warm")
    assert start.source == "driver"
    settings = MemoryBudget(utilization=0.5)
    assert measured_budget(settings, start, crowded, GIB).nbytes == 0
    assert estimated_budget(settings, start, crowded, GIB).nbytes == 0
    share = start.total // 2
    assert measured_budget(settings, start, empty, GIB).nbytes == share - GIB
    assert estimated_budget(settings, start, empty, GIB).nbytes == share - GIB
