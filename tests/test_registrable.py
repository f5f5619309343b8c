"""registrable(): what a connector is told. Exact, backed, each in its allocation, stale ones found (C1, C2, C4)."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from tests.helpers import GpuLikeDriver, peek, poke
from vmmcache import Allocation, ExtensibleTensor, RegistrableSegment, StaleSegment, StateError
from vmmcache_host._driver import HostDriver


class RdmaDriver(HostDriver):
    """Says of every second allocation that a NIC reaches it."""

    def _create(self, nbytes: int) -> Allocation:
        allocation = super()._create(nbytes)
        return dataclasses.replace(allocation, rdma_capable=allocation.id % 2 == 0)


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


def places(tensor: ExtensibleTensor) -> list[tuple[int, int, int]]:
    """Segment, logical offset and size of each descriptor."""
    return [(each.segment_index, each.logical_offset, each.nbytes) for each in tensor.registrable()]


def test_nothing_committed_is_nothing_to_register(driver: HostDriver) -> None:
    tensor = ExtensibleTensor(8 * driver.granule, driver, segments=2)
    assert tensor.registrable() == ()
    tensor.commit([0, 5])
    assert places(tensor) == [(1, 0, 5)]
    tensor.release_physical()
    assert tensor.registrable() == ()
    tensor.close()
    with pytest.raises(StateError, match="registrable"):
        tensor.registrable()


def test_a_descriptor_is_true_in_every_field() -> None:
    driver = GpuLikeDriver()
    granule = driver.granule
    tensor = ExtensibleTensor(16 * granule, driver, segments=2)
    tensor.commit([0, 2 * granule])
    tensor.commit([0, granule])
    (segment,) = tensor.registrable()
    (allocation,) = tensor.allocations
    assert segment == RegistrableSegment(
        base=tensor.base_address + 8 * granule,
        nbytes=granule,
        device_type="cuda",
        device_id=3,
        mem_type="VRAM",
        segment_index=1,
        logical_offset=0,
        allocation_id=allocation.id,
        allocation_offset=0,
        allocation_nbytes=2 * granule,
        single_allocation=True,
        whole=True,
        aligned=True,
        generation=tensor.generation,
        rdma_capable=None,
        handle_types=frozenset({"posix_fd"}),
    )
    tensor.close()


def test_a_descriptor_is_a_value(driver: HostDriver) -> None:
    with ExtensibleTensor(driver.granule, driver) as tensor:
        tensor.commit(5)
        (segment,) = tensor.registrable()
        assert segment == tensor.registrable()[0]
        assert len({segment, tensor.registrable()[0]}) == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            segment.nbytes = 6  # type: ignore[misc]  # the point


def test_each_allocation_run_of_a_segment_is_one_entry_and_growth_appends(driver: HostDriver) -> None:
    """C2."""
    granule = driver.granule
    with ExtensibleTensor(16 * granule, driver, segments=2) as tensor:
        tensor.commit(granule)
        before = tensor.registrable()[0]
        tensor.commit([3 * granule - 5, granule])
        assert places(tensor) == [(0, 0, granule), (0, granule, 2 * granule - 5), (1, 0, granule)]
        assert tensor.registrable()[0] == dataclasses.replace(before, whole=False)
        assert [each.whole for each in tensor.registrable()] == [False, False, True]
        assert [each.aligned for each in tensor.registrable()] == [True, False, True]
        tensor.commit([3 * granule - 5, granule], defragment=True, keep=True)
        assert [each.whole for each in tensor.registrable()] == [True, True]


def test_entries_are_disjoint_sorted_and_cover_exactly_what_is_committed(driver: HostDriver) -> None:
    """C1."""
    half = 3 * driver.granule // 2
    with ExtensibleTensor(6 * half, driver, segments=[half, half, 2 * half, 2 * half], chunk=driver.granule) as tensor:
        tensor.commit([half, half - 1, 0, 2 * half])
        entries = tensor.registrable()
        assert all(before.base + before.nbytes <= after.base for before, after in pairwise(entries))
        for index, nbytes in enumerate(tensor.committed):
            own = [each for each in entries if each.segment_index == index]
            assert sum(each.nbytes for each in own) == nbytes
            for each in own:
                assert each.base == tensor.base_address + tensor.segment_offsets[index] + each.logical_offset
            assert [each.logical_offset for each in own] == [
                sum(each.nbytes for each in own[:place]) for place in range(len(own))
            ]


def test_an_entry_lies_in_its_allocation_where_it_says(driver: HostDriver) -> None:
    """I10: seen through a second mapping of the very allocation."""
    half = 3 * driver.granule // 2
    with ExtensibleTensor(2 * half, driver, segments=2) as tensor:
        tensor.commit(half)
        reservation = driver.reserve(4 * driver.granule)
        for number, each in enumerate(tensor.registrable()):
            poke(each.base, bytes([number + 1]) * each.nbytes)
            (allocation,) = (one for one in tensor.allocations if one.id == each.allocation_id)
            assert allocation.nbytes == each.allocation_nbytes
            assert each.allocation_offset + each.nbytes <= each.allocation_nbytes
            alias = driver.map(reservation, 0, allocation)
            driver.grant([alias])
            found = peek(alias.address + each.allocation_offset, each.nbytes)
            driver.unmap(alias)
            assert found == bytes([number + 1]) * each.nbytes
        driver.free(reservation)


def test_segments_that_share_an_allocation_each_have_their_part(driver: HostDriver) -> None:
    half = 3 * driver.granule // 2
    with ExtensibleTensor(2 * half, driver, segments=2) as tensor:
        tensor.commit([half, 5])
        one, two = (each for each in tensor.registrable() if each.logical_offset == 0)
        assert one.allocation_id == two.allocation_id
        assert (one.allocation_offset, two.allocation_offset) == (0, half)
        assert not two.aligned


@pytest.mark.parametrize(
    ("offset", "nbytes", "aligned"), [(0, 1, True), (0, 2, True), (0, 1.5, False), (0.5, 0.5, False), (0.5, 1, False)]
)
def test_aligned_is_said_of_both_ends(driver: HostDriver, offset: float, nbytes: float, aligned: bool) -> None:
    before, size = int(offset * driver.granule), int(nbytes * driver.granule)
    sizes = [before, 4 * driver.granule - before] if before else [4 * driver.granule]
    with ExtensibleTensor(4 * driver.granule, driver, segments=sizes) as tensor:
        tensor.commit([*[0] * (len(sizes) - 1), size])
        assert tensor.registrable()[0].aligned is aligned


def test_what_the_driver_says_of_an_allocation_is_handed_on() -> None:
    driver = RdmaDriver()
    with ExtensibleTensor(16 * driver.granule, driver, segments=4) as tensor:
        tensor.commit(driver.granule)
        assert [each.rdma_capable for each in tensor.registrable()] == [
            each.allocation_id % 2 == 0 for each in tensor.registrable()
        ]
        assert {each.rdma_capable for each in tensor.registrable()} == {True, False}


def test_check_passes_what_is_current_and_finds_what_is_stale(driver: HostDriver) -> None:
    """C4."""
    with ExtensibleTensor(16 * driver.granule, driver, segments=2) as tensor:
        tensor.commit(4 * driver.granule)
        segment = tensor.registrable()[0]
        tensor.check(segment)
        tensor.commit(5 * driver.granule)
        tensor.check(segment)
        tensor.commit([5 * driver.granule, 0])
        with pytest.raises(StaleSegment, match=r"in generation 0; .* is in generation [1-9]") as caught:
            tensor.check(segment)
        assert caught.value.owners == ()
        tensor.check(tensor.registrable()[0])


def test_check_finds_descriptors_of_another_tensor(driver: HostDriver) -> None:
    with ExtensibleTensor(driver.granule, driver) as one, ExtensibleTensor(driver.granule, driver) as other:
        one.commit(5)
        other.commit(5)
        one.check(one.registrable()[0])
        with pytest.raises(StaleSegment):
            one.check(other.registrable()[0])


@pytest.mark.parametrize("state", ["asleep", "closed"])
def test_nothing_is_current_without_memory(driver: HostDriver, state: str) -> None:
    tensor = ExtensibleTensor(driver.granule, driver)
    tensor.commit(5)
    segment = dataclasses.replace(tensor.registrable()[0], generation=tensor.generation + 1)
    if state == "asleep":
        tensor.release_physical()
    else:
        tensor.close()
    with pytest.raises(StaleSegment):
        tensor.check(segment)
    tensor.close()
