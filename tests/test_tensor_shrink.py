"""ExtensibleTensor shrinks: the prefix stays, whole allocations beyond the cut go back, the rest is counted."""

from __future__ import annotations

import pytest

from tests.helpers import Accounts, JournalDriver, accounts, peek, poke
from vmmcache import ExtensibleTensor, StaleSegment


@pytest.fixture
def driver() -> JournalDriver:
    return JournalDriver()


def grown(driver: JournalDriver, *sizes: int, segments: int = 1, chunk: int | None = None) -> ExtensibleTensor:
    """A tensor of 16 granules a segment that was committed to each of `sizes` (in granules) in turn."""
    tensor = ExtensibleTensor(16 * segments * driver.granule, driver, segments=segments, chunk=chunk)
    for granules in sizes:
        tensor.commit(granules * driver.granule)
    driver.names()
    return tensor


@pytest.mark.parametrize(("keep_granules", "left"), [(8, 8), (7, 8), (5, 8), (4, 4), (3, 4), (2, 2), (1, 2), (0, 0)])
def test_what_lies_wholly_beyond_the_cut_goes_back(driver: JournalDriver, keep_granules: int, left: int) -> None:
    """T5: grown in steps to 2, 4 and 8 granules, so there are three allocations."""
    tensor = grown(driver, 2, 4, 8)
    tensor.commit(keep_granules * driver.granule)
    assert tensor.committed == (keep_granules * driver.granule,)
    assert tensor.physical_bytes == accounts(driver).used == left * driver.granule
    tensor.close()


def test_one_byte_holds_an_allocation(driver: JournalDriver) -> None:
    tensor = grown(driver, 2, 4)
    tensor.commit(2 * driver.granule + 1)
    assert tensor.physical_bytes == 4 * driver.granule
    tensor.commit(2 * driver.granule)
    assert tensor.physical_bytes == 2 * driver.granule
    tensor.close()


def test_the_prefix_keeps_its_contents(driver: JournalDriver) -> None:
    tensor = grown(driver, 2, 8)
    cut = 3 * driver.granule + 17
    poke(tensor.base_address, b"first")
    poke(tensor.base_address + cut - 4, b"last")
    tensor.commit(cut)
    assert peek(tensor.base_address, 5) == b"first"
    assert peek(tensor.base_address + cut - 4, 4) == b"last"
    tensor.close()


def test_chunks_let_a_tensor_shrink_in_small_steps(driver: JournalDriver) -> None:
    tensor = grown(driver, 9, chunk=2 * driver.granule)
    tensor.commit(3 * driver.granule)
    assert tensor.physical_bytes == 4 * driver.granule
    tensor.close()


def test_giving_back_is_one_wait_and_two_calls_an_allocation(driver: JournalDriver) -> None:
    """I8, B2."""
    tensor = grown(driver, 2, 4, 8, segments=3)
    tensor.commit(2 * driver.granule)
    assert driver.names() == ["synchronise", *["unmap", "release"] * 6]
    tensor.close()


def test_a_shrink_inside_an_allocation_gives_nothing_back(driver: JournalDriver) -> None:
    tensor = grown(driver, 8)
    (allocation,) = tensor.allocations
    tensor.commit(5)
    assert set(driver.names()) <= {"synchronise"}
    assert tensor.allocations == (allocation,)
    assert tensor.committed == (5,)
    assert tensor.physical_bytes == 8 * driver.granule
    tensor.close()


def test_segments_shrink_and_grow_in_one_commit(driver: JournalDriver) -> None:
    tensor = grown(driver, 2, 4, segments=2)
    poke(tensor.base_address, b"zero")
    poke(tensor.base_address + tensor.segment_offsets[1], b"one")
    tensor.commit([driver.granule, 6 * driver.granule])
    assert tensor.committed == (driver.granule, 6 * driver.granule)
    assert tensor.physical_bytes == (2 + 6) * driver.granule
    assert peek(tensor.base_address, 4) == b"zero"
    assert peek(tensor.base_address + tensor.segment_offsets[1], 3) == b"one"
    tensor.close()


def test_growth_comes_first_so_that_it_can_still_fail(monkeypatch: pytest.MonkeyPatch, driver: JournalDriver) -> None:
    """I4: a commit that both shrinks and grows is refused as a whole."""
    tensor = grown(driver, 4, segments=2)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(10 * driver.granule))
    before = tensor.allocations, tensor.committed, tensor.generation
    with pytest.raises(MemoryError):
        tensor.commit([0, 7 * driver.granule])
    assert (tensor.allocations, tensor.committed, tensor.generation) == before
    tensor.commit([0, 6 * driver.granule])
    assert tensor.committed == (0, 6 * driver.granule)
    tensor.close()


def test_an_allocation_stays_while_a_neighbour_needs_its_granule(driver: JournalDriver) -> None:
    granule = driver.granule
    tensor = ExtensibleTensor(3 * granule, driver, segments=2)
    tensor.commit(3 * granule // 2)
    poke(tensor.base_address + 3 * granule // 2, b"neighbour")
    tensor.commit([0, 10])
    assert peek(tensor.base_address + 3 * granule // 2, 9) == b"neighbour"
    assert tensor.physical_bytes == 2 * granule
    tensor.commit(0)
    assert tensor.physical_bytes == 0
    tensor.close()


def test_shrinking_to_nothing_gives_back_all_memory_and_no_address(driver: JournalDriver) -> None:
    tensor = grown(driver, 3, segments=4)
    base = tensor.base_address
    tensor.commit(0)
    assert accounts(driver) == Accounts(reservations=1)
    assert (tensor.state, tensor.base_address, tensor.registrable()) == ("committed", base, ())
    tensor.commit(1)
    assert peek(base, 1) == b"\0"
    tensor.close()


def test_a_shrink_makes_descriptors_stale_even_if_it_unmaps_nothing(driver: JournalDriver) -> None:
    """C4: the bytes that were cut off may be anybody's contents after the next growth."""
    tensor = grown(driver, 4)
    (described,) = tensor.registrable()
    tensor.check(described)
    generation = tensor.generation
    tensor.commit(4 * driver.granule - 1)
    assert tensor.generation > generation
    with pytest.raises(StaleSegment):
        tensor.check(described)
    tensor.close()


def test_growth_leaves_the_generation(driver: JournalDriver) -> None:
    tensor = grown(driver, 1)
    (described,) = tensor.registrable()
    generation = tensor.generation
    for granules in (2, 5, 5, 16):
        tensor.commit(granules * driver.granule)
    assert tensor.generation == generation
    tensor.check(described)
    tensor.close()
