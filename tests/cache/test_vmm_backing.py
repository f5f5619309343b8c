"""What slots on VMM memory have beyond what all backings do: addresses that stay, and allocations that are counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cache.backing_suite import CAPACITY, LAYOUT, content, fill, seen, zero
from tests.fine_host import FINE, FineHostDriver
from tests.helpers import peek
from vmmcache import ConfigError, DriverError, DriverUnavailable, StateError
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.planning import Attention, Buffer, CacheLayout
from vmmcache.testing import DirtyDriver, RecordingDriver

POOLS = PoolMap(LAYOUT, "block-major", FINE)


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    driver = RecordingDriver(DirtyDriver(FineHostDriver()))
    yield driver
    driver.check_clean()


@pytest.fixture
def backing(driver: RecordingDriver) -> Iterator[VmmBacking]:
    with_memory = VmmBacking(POOLS, CAPACITY, driver)
    yield with_memory
    with_memory.close()


# Addresses ------------------------------------------------------------------------------------------------------------


def test_views_span_the_capacity_before_memory_is_there_and_find_it_later(backing: VmmBacking) -> None:
    """T3, I1: at the same addresses through growth, shrinking, defragmenting, sleep and wake."""
    views = backing.views()
    for layer, places in backing.pools.places.items():
        for role, place in places.items():
            view = views[layer][role]
            assert view.shape == (CAPACITY[place.group], *place.shape)
            start = backing.tensor.base_address + backing.tensor.segment_offsets[place.segment]
            assert view.data_ptr() == start + place.offset
            assert view.stride()[0] == place.stride
    backing.commit((3, 2, 1))
    backing.commit((12, 2, 5))
    key = views["layers.1"]["key"]
    key[11] = 5
    backing.commit((12, 1, 2), defragment=True)
    assert key[11].eq(5).all()
    backing.sleep(backup=True)
    backing.wake()
    exact = backing.views(exact=True)["layers.1"]["key"]
    assert exact.data_ptr() == key.data_ptr()
    assert exact.shape == (12, 4096)
    assert exact[11].eq(5).all()
    assert peek(key[11].data_ptr(), 4096) == b"\x05" * 4096
    assert backing.view("layers.1", "scale").shape == (CAPACITY[0], 4, 16)
    del views, view, key, exact


def test_a_capacity_may_be_more_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "1MiB")
    backing = VmmBacking(POOLS, 1 << 20, FineHostDriver())
    backing.commit(2)
    assert backing.physical_bytes < 1 << 20 < backing.tensor.capacity
    backing.close()


# Memory ---------------------------------------------------------------------------------------------------------------


def test_what_is_mapped_is_the_footprint_and_each_segment_is_one_allocation(backing: VmmBacking) -> None:
    """I10, I11, S9: fewer slots than warm-up committed, and exactly those."""
    backing.commit((9, 17, 5))
    assert backing.physical_bytes == POOLS.footprint((9, 17, 5))
    backing.commit((21, 18, 1))
    counts = (8, 8, 1)
    assert backing.physical_bytes > POOLS.footprint(counts)
    backing.commit(counts, defragment=True, keep=False)
    assert backing.physical_bytes == POOLS.footprint(counts)
    described = backing.memory.registrable()
    assert [segment.segment_index for segment in described] == list(range(len(POOLS.segments)))
    assert all(segment.whole and segment.single_allocation for segment in described)


def test_at_counts_that_are_aligned_every_segment_begins_and_ends_on_a_granule(driver: RecordingDriver) -> None:
    """S3: the reserved capacity is aligned too, so no granule belongs to two segments."""
    layout = CacheLayout(16, [Attention([Buffer("key", 12288), Buffer("scale", 4096)], count=2)])
    pools = PoolMap(layout, "layer-major", FINE)
    step = pools.alignment(0)
    assert step == 16
    backing = VmmBacking(pools, 3 * step + 1, driver)
    for slots in (1, step - 1, step, 3 * step):
        backing.commit(slots, defragment=True)
        aligned = [segment.aligned for segment in backing.memory.registrable()]
        assert aligned == [slots * segment.stride % FINE == 0 for segment in pools.segments]
        assert all(aligned) == (slots % step == 0)
        assert all(offset % FINE == 0 for offset in backing.tensor.segment_offsets)
    backing.close()


def test_growing_is_allowed_under_a_lease_and_appends(backing: VmmBacking) -> None:
    """C2, C3."""
    backing.commit((8, 4, 2))
    before = backing.memory.registrable()
    with backing.memory.lease(0, "connector"):
        backing.commit((30, 20, 5))
        for segment in before:
            backing.memory.check(segment)
        after = backing.memory.registrable()
        assert {(one.base, one.allocation_id) for one in before} <= {(one.base, one.allocation_id) for one in after}
        assert len(after) > len(before)


def test_with_chunks_a_shrink_gives_back_more_finely(driver: RecordingDriver) -> None:
    """T5."""
    left = {}
    for chunk in (None, FINE):
        backing = VmmBacking(POOLS, CAPACITY, driver, chunk=chunk)
        backing.commit(CAPACITY)
        backing.commit((4, 24, 5))
        left[chunk] = backing.physical_bytes
        backing.close()
    assert left[None] == POOLS.footprint(CAPACITY)
    assert left[FINE] == POOLS.footprint((4, 24, 5))


# Calls ----------------------------------------------------------------------------------------------------------------


def verbs(driver: RecordingDriver, since: int) -> list[str]:
    return [call.verb for call in driver.journal[since:]]


def test_contents_take_one_call_for_each_run_and_segment_and_no_wait_between(
    backing: VmmBacking, driver: RecordingDriver
) -> None:
    """I8's other half: what the engine's kernels still do on the cache is waited for before anything is read.

    And written bytes are there when it returns: a vendor's copy of pageable memory may return before.
    """
    backing.commit((12, 4, 3))
    fill(backing)
    segments = len(POOLS.groups[0])
    mark = len(driver.journal)
    driver.launch(backing.tensor.base_address, backing.tensor.capacity)
    copy = backing.read_slots(0, [4, 5, 6, 9, 2, 3])
    assert verbs(driver, mark) == ["synchronise"] + ["read"] * 3 * segments
    mark = len(driver.journal)
    driver.launch(backing.tensor.base_address, backing.tensor.capacity)
    backing.write_slots(0, [0, 1, 2, 3, 8, 9], copy)
    assert verbs(driver, mark) == ["synchronise"] + ["write"] * 2 * segments + ["synchronise"]
    mark = len(driver.journal)
    driver.launch(backing.tensor.base_address, backing.tensor.capacity)
    backing.move_slots(0, [(8, 2), (9, 3), (10, 4), (11, 8)])
    assert verbs(driver, mark) == ["synchronise"] + ["copy"] * 2 * segments + ["synchronise"]


# Refusals -------------------------------------------------------------------------------------------------------------


def test_addresses_that_are_refused_leave_nothing(driver: RecordingDriver) -> None:
    """S5: a large reservation fails where a small one passed."""
    driver.fail(verb="reserve")
    with pytest.raises(DriverError) as caught:
        VmmBacking(POOLS, CAPACITY, driver)
    assert caught.value.call == "reserve"
    driver.check_clean()
    driver.heal()
    with pytest.raises(DriverError, match="mmap"):
        VmmBacking(
            PoolMap(CacheLayout(1, [Attention([Buffer("key", 1 << 29)])]), "block-major", FINE), 2**31 - 1, driver
        )
    driver.check_clean()
    VmmBacking(POOLS, CAPACITY, driver).close()


def test_what_cannot_be_a_backing_is_refused(driver: RecordingDriver) -> None:
    with pytest.raises(ConfigError, match="granule of the map"):
        VmmBacking(PoolMap(LAYOUT, "block-major", 2 * FINE), CAPACITY, driver)
    for wrong in (0, [1, 1], [1, 0, 1], [1, 1, 2**31]):
        with pytest.raises(ConfigError, match="capacity"):
            VmmBacking(POOLS, wrong, driver)
    with pytest.raises(DriverUnavailable):
        VmmBacking(POOLS, CAPACITY, "abacus:0")
    assert driver.journal == []


def test_views_are_not_to_be_had_any_more_after_close(driver: RecordingDriver) -> None:
    backing = VmmBacking(POOLS, CAPACITY, driver)
    backing.close()
    for exact in (True, False):
        with pytest.raises(StateError):
            backing.views(exact=exact)


def test_a_copy_of_slots_outlives_their_memory(backing: VmmBacking) -> None:
    """What is kept of a suspended request, and written back to whichever slots it gets later."""
    backing.commit((4, 4, 1))
    there = fill(backing)
    copy = backing.read_slots(0, [1, 3])
    backing.commit(0)
    backing.commit((6, 0, 0))
    backing.write_slots(0, [5, 0], copy)
    empty = {(0, slot): zero(backing, 0) for slot in range(6)}
    assert seen(backing) == {**empty, (0, 5): there[0, 1], (0, 0): there[0, 3]}
    assert content(backing, 0, 2, tag=1).nbytes == copy.nbytes
