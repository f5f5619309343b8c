"""commit(defragment=True): one exact allocation for each segment, with and without the contents."""

from __future__ import annotations

import pytest

from tests.helpers import DIRT, DirtyDriver, JournalDriver, accounts, peek, poke
from vmmcache import ExtensibleTensor, OutOfDeviceMemory


@pytest.fixture
def driver() -> JournalDriver:
    return JournalDriver()


def fragmented(driver: JournalDriver | DirtyDriver, segments: int = 2) -> ExtensibleTensor:
    """8 granules a segment, of which 5 are committed in allocations of 1, 1 and 3. Each byte tells its place."""
    tensor = ExtensibleTensor(8 * segments * driver.granule, driver, segments=segments)
    for granules in (1, 2, 5):
        tensor.commit(granules * driver.granule)
    for index, offset in enumerate(tensor.segment_offsets):
        for place in range(0, 5 * driver.granule, driver.granule // 2):
            poke(tensor.base_address + offset + place, place_mark(index, place))
    if isinstance(driver, JournalDriver):
        driver.names()
    return tensor


def place_mark(index: int, place: int) -> bytes:
    return f"{index}:{place}.".encode()


def assert_kept(tensor: ExtensibleTensor, index: int, nbytes: int) -> None:
    for place in range(0, nbytes, tensor.granule // 2):
        mark = place_mark(index, place)
        assert peek(tensor.base_address + tensor.segment_offsets[index] + place, len(mark)) == mark


def sizes_of_allocations(tensor: ExtensibleTensor) -> list[int]:
    return [allocation.nbytes // tensor.granule for allocation in tensor.allocations]


@pytest.mark.parametrize("keep", [False, True])
def test_each_segment_gets_one_exact_allocation(driver: JournalDriver, keep: bool) -> None:
    """T6, T9."""
    tensor = fragmented(driver)
    tensor.commit(3 * driver.granule + 5, defragment=True, keep=keep)
    assert tensor.committed == (3 * driver.granule + 5,) * 2
    assert sizes_of_allocations(tensor) == [4, 4]
    assert tensor.physical_bytes == accounts(driver).used == 8 * driver.granule
    assert all(each.whole and each.single_allocation for each in tensor.registrable())
    tensor.close()


@pytest.mark.parametrize("granules", [2, 5, 8])
def test_keep_copies_the_prefix_when_it_shrinks_stays_or_grows(driver: JournalDriver, granules: int) -> None:
    tensor = fragmented(driver)
    tensor.commit(granules * driver.granule, defragment=True, keep=True)
    for index in range(2):
        assert_kept(tensor, index, min(5, granules) * driver.granule)
    assert sizes_of_allocations(tensor) == [granules, granules]
    if granules == 8:
        assert peek(tensor.base_address + 5 * driver.granule, 3 * driver.granule) == bytes(3 * driver.granule)
    tensor.close()


def test_without_keep_the_bytes_read_as_zero(driver: JournalDriver) -> None:
    """I7."""
    tensor = fragmented(driver)
    tensor.commit(4 * driver.granule, defragment=True)
    for offset in tensor.segment_offsets:
        assert peek(tensor.base_address + offset, 4 * driver.granule) == bytes(4 * driver.granule)
    tensor.close()


@pytest.mark.parametrize("keep", [False, True])
def test_a_segment_that_is_exact_already_is_left_alone(driver: JournalDriver, keep: bool) -> None:
    tensor = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    tensor.commit([4 * driver.granule, driver.granule])
    tensor.commit([4 * driver.granule, 2 * driver.granule])
    poke(tensor.base_address, b"alone")
    first = tensor.allocations[0]
    tensor.commit([4 * driver.granule, 2 * driver.granule], defragment=True, keep=keep)
    assert tensor.allocations[0] == first
    assert peek(tensor.base_address, 5) == b"alone"
    assert sizes_of_allocations(tensor) == [4, 2]
    tensor.close()


def test_a_tensor_that_is_exact_already_calls_nobody(driver: JournalDriver) -> None:
    tensor = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    tensor.commit(4 * driver.granule)
    generation = tensor.generation
    driver.names()
    tensor.commit(4 * driver.granule, defragment=True)
    assert driver.names() == []
    assert tensor.generation == generation
    tensor.close()


def test_an_exchange_makes_descriptors_stale(driver: JournalDriver) -> None:
    """C4: also where the size stays."""
    for keep in (False, True):
        tensor = fragmented(driver)
        generation = tensor.generation
        tensor.commit(5 * driver.granule, defragment=True, keep=keep)
        assert tensor.generation > generation
        tensor.close()


def test_one_allocation_whatever_the_chunk(driver: JournalDriver) -> None:
    tensor = ExtensibleTensor(8 * driver.granule, driver, chunk=driver.granule)
    tensor.commit(5 * driver.granule)
    assert sizes_of_allocations(tensor) == [1] * 5
    tensor.commit(5 * driver.granule, defragment=True, keep=True)
    assert sizes_of_allocations(tensor) == [5]
    tensor.close()


@pytest.mark.parametrize("keep", [False, True])
def test_neighbours_that_share_a_granule_get_one_allocation_together(driver: JournalDriver, keep: bool) -> None:
    half = 3 * driver.granule // 2
    tensor = ExtensibleTensor(2 * half, driver, segments=2)
    tensor.commit(half)
    poke(tensor.base_address, b"a" * half + b"b" * half)
    tensor.commit(half, defragment=True, keep=keep)
    assert sizes_of_allocations(tensor) == [3]
    assert peek(tensor.base_address, 2 * half) == (b"a" * half + b"b" * half if keep else bytes(2 * half))
    tensor.close()


def test_without_keep_the_old_memory_pays_for_the_new(monkeypatch: pytest.MonkeyPatch, driver: JournalDriver) -> None:
    """T6: it goes back first, segment by segment."""
    tensor = fragmented(driver)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(10 * driver.granule))
    tensor.commit(5 * driver.granule, defragment=True)
    assert sizes_of_allocations(tensor) == [5, 5]
    tensor.close()


def test_keep_needs_room_for_one_segment_and_changes_nothing_without(
    monkeypatch: pytest.MonkeyPatch, driver: JournalDriver
) -> None:
    """I4."""
    tensor = fragmented(driver)
    before = tensor.allocations, tensor.committed, tensor.generation, accounts(driver)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(14 * driver.granule))
    with pytest.raises(OutOfDeviceMemory) as caught:
        tensor.commit(5 * driver.granule, defragment=True, keep=True)
    assert caught.value.requested == 5 * driver.granule
    assert (tensor.allocations, tensor.committed, tensor.generation, accounts(driver)) == before
    for index in range(2):
        assert_kept(tensor, index, 5 * driver.granule)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(15 * driver.granule))
    tensor.commit(5 * driver.granule, defragment=True, keep=True)
    assert sizes_of_allocations(tensor) == [5, 5]
    tensor.close()


def test_dirty_memory_is_zeroed_where_nothing_was_copied() -> None:
    """I7, on a driver whose fresh memory is full of somebody's bytes."""
    driver = DirtyDriver()
    tensor = fragmented(driver)
    tensor.commit(7 * driver.granule + 3, defragment=True, keep=True)
    for offset in tensor.segment_offsets:
        grown = peek(tensor.base_address + offset + 5 * driver.granule, 2 * driver.granule + 3)
        assert grown == bytes(2 * driver.granule + 3)
    assert_kept(tensor, 1, 5 * driver.granule)
    tensor.commit(2 * driver.granule, defragment=True)
    assert bytes([DIRT]) not in peek(tensor.base_address, 2 * driver.granule)
    tensor.close()
