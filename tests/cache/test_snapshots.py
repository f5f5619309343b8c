"""S2, S14: where free memory and transient peaks are read: on the host, and where torch has an allocator."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vmmcache import MemoryInfo
from vmmcache.cache import snapshots
from vmmcache.cache.snapshots import MemoryReader, Snapshot
from vmmcache.units import GIB, MIB
from vmmcache_host._driver import HostDriver


def burn(nbytes: int) -> None:
    """Touch memory, and give it back."""
    memory = bytearray(nbytes)
    memory[::4096] = b"x" * len(memory[::4096])


def test_what_comes_and_goes_on_the_host_is_seen() -> None:
    reader = MemoryReader()
    reader.start_peak()
    burn(96 * MIB)
    assert 80 * MIB < reader.transient_peak() < 400 * MIB
    snapshot = reader.snapshot("warm", 7)
    assert snapshot.transient_peak > 80 * MIB
    assert (snapshot.stage, snapshot.committed, snapshot.headroom) == ("warm", 7, snapshot.free + 7)
    assert reader.peak_source == "peak resident set size"
    reader.start_peak()
    assert reader.transient_peak() < 40 * MIB


def test_what_stays_is_no_peak() -> None:
    reader = MemoryReader()
    reader.start_peak()
    kept = bytearray(64 * MIB)
    kept[::4096] = b"x" * len(kept[::4096])
    assert reader.transient_peak() < 40 * MIB
    assert len(kept) == 64 * MIB


@pytest.mark.parametrize("there", [False, True])
def test_a_peak_that_cannot_be_set_back_is_an_upper_bound_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Some containers do not let a process do that: too much is kept free then, and the report says why."""
    file = tmp_path / "clear_refs"
    if there:
        file.mkdir()  # it cannot be written, whoever one is
    monkeypatch.setattr(snapshots, "_CLEAR_REFS", file if there else tmp_path / "not" / "there")
    burn(96 * MIB)
    reader = MemoryReader()
    reader.start_peak()
    assert reader.transient_peak() >= 0
    assert "could not be set back" in reader.peak_source
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  100 kB\n")
    monkeypatch.setattr(snapshots, "_STATUS", status)
    assert reader.transient_peak() == 800 << 10


def test_a_driver_says_what_is_free_and_its_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """S14."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "64MiB")
    driver = HostDriver()
    reader = MemoryReader(driver)
    allocation = driver.create(16 * MIB)
    snapshot = reader.snapshot("start", 16 * MIB)
    assert (snapshot.free, snapshot.total, snapshot.source) == (48 * MIB, 64 * MIB, "configured")
    assert snapshot.headroom == 64 * MIB
    driver.release(allocation)


def test_another_source_can_be_put_in() -> None:
    """S14: unified memory, or whatever a driver cannot know."""
    reader = MemoryReader(HostDriver(), memory_info=lambda: MemoryInfo(5, 9, "elsewhere"))
    snapshot = reader.snapshot("start")
    assert (snapshot.free, snapshot.total, snapshot.source) == (5, 9, "elsewhere")


def test_a_peak_below_what_is_live_is_none() -> None:
    """Scenario 17: a pluggable allocator may report less than nothing."""
    assert Snapshot(0, 0, "x", reserved_peak=3, live=5).transient_peak == 0
    assert Snapshot(0, 0, "x", reserved_peak=5, live=3).transient_peak == 2


# Where torch has an allocator for the device --------------------------------------------------------------------------


class Allocator(SimpleNamespace):
    """What `torch.get_device_module` gives for an accelerator: no torch can use one here."""

    def __init__(self, *, initialized: bool) -> None:
        super().__init__(peak=700, calls=[])
        self.is_available = lambda: True
        self.is_initialized = lambda: initialized

    def max_memory_reserved(self, device: str) -> int:
        self.calls.append(("max_memory_reserved", device))
        return int(self.peak)

    def memory_allocated(self, device: str) -> int:
        return 200

    def reset_peak_memory_stats(self, device: str) -> None:
        self.calls.append(("reset_peak_memory_stats", device))
        self.peak = 300

    def empty_cache(self) -> None:
        self.calls.append(("empty_cache",))

    def mem_get_info(self, device: str) -> tuple[int, int]:
        self.calls.append(("mem_get_info", device))
        return 3 * GIB, 4 * GIB


def with_torch(monkeypatch: pytest.MonkeyPatch, *, initialized: bool) -> Allocator:
    module = Allocator(initialized=initialized)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_device_module=lambda device: module))
    return module


def test_the_peak_is_what_torch_had_reserved_beyond_what_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: reserved, not allocated: rounding and fragmentation will be there again."""
    module = with_torch(monkeypatch, initialized=True)
    reader = MemoryReader(torch_device="xpu:1")
    assert reader.transient_peak() == 500
    reader.start_peak()
    assert reader.transient_peak() == 100
    reader.settle()
    snapshot = reader.snapshot("warm")
    assert (snapshot.reserved_peak, snapshot.live) == (300, 200)
    assert (snapshot.free, snapshot.total, snapshot.source) == (3 * GIB, 4 * GIB, "runtime")
    assert {call[-1] for call in module.calls if len(call) > 1} == {"xpu:1"}
    assert ("empty_cache",) in module.calls
    assert reader.peak_source == "torch's allocator: most reserved"


def test_a_device_that_torch_has_not_used_is_not_started_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak of nothing, with the reason; and no statistics are asked for, which would start the device."""
    module = with_torch(monkeypatch, initialized=False)
    reader = MemoryReader(torch_device="cuda:0", memory_info=lambda: MemoryInfo(1, 2, "x"))
    reader.start_peak()
    reader.settle()
    assert reader.transient_peak() == 0
    assert reader.peak_source == "torch's allocator has not used cuda:0: no peak was seen"
    assert module.calls == []


def test_without_torch_there_is_no_peak_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    reader = MemoryReader(torch_device="cuda:0", memory_info=lambda: MemoryInfo(1, 2, "x"))
    assert (reader.transient_peak(), "no peak was seen" in reader.peak_source) == (0, True)
    assert "torch" not in sys.modules
