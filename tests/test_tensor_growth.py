"""ExtensibleTensor grows: addresses stay, each unmapped run costs three calls, all segments or none."""

from __future__ import annotations

import pytest

from tests.helpers import Accounts, JournalDriver, accounts, peek, poke
from vmmcache import ExtensibleTensor, OutOfDeviceMemory, StateError


@pytest.fixture
def driver() -> JournalDriver:
    return JournalDriver()


def extents(tensor: ExtensibleTensor) -> list[tuple[int, int]]:
    """Allocations as the kernel's addresses say, in granules from the base."""
    found = {(each.base - each.allocation_offset, each.allocation_nbytes) for each in tensor.registrable()}
    granule = tensor.granule
    return sorted(
        ((start - tensor.base_address) // granule, (start - tensor.base_address + nbytes) // granule)
        for start, nbytes in found
    )


def test_a_new_tensor_has_addresses_and_no_memory(driver: JournalDriver) -> None:
    with ExtensibleTensor(1 << 40, driver, segments=4) as tensor:
        assert (tensor.state, tensor.committed, tensor.committed_bytes) == ("reserved", (0, 0, 0, 0), 0)
        assert (tensor.physical_bytes, tensor.allocations, tensor.registrable()) == (0, (), ())
        assert (tensor.capacity, tensor.segment_sizes) == (1 << 40, (1 << 38,) * 4)
        assert tensor.segment_offsets == (0, 1 << 38, 2 << 38, 3 << 38)
        assert accounts(driver) == Accounts(reservations=1)


def test_the_base_address_never_changes(driver: JournalDriver) -> None:
    """I1."""
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    base = tensor.base_address
    for nbytes in (1, 5 * driver.granule, 3, 8 * driver.granule):
        tensor.commit(nbytes)
        assert tensor.base_address == base
    tensor.commit(7, defragment=True)
    tensor.release_physical()
    assert tensor.base_address == base
    tensor.restore()
    tensor.close()
    assert tensor.base_address == base


def test_capacity_may_exceed_what_the_device_has(monkeypatch: pytest.MonkeyPatch, driver: JournalDriver) -> None:
    """T1."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with ExtensibleTensor(1 << 40, driver) as tensor:
        tensor.commit(16 << 20)
        with pytest.raises(OutOfDeviceMemory):
            tensor.commit((16 << 20) + 1)
        assert tensor.committed == (16 << 20,)


@pytest.mark.parametrize("granules", [1, 2, 1000])
def test_a_grown_run_costs_three_calls_however_many_bytes(driver: JournalDriver, granules: int) -> None:
    """T4."""
    with ExtensibleTensor(1 << 40, driver) as tensor:
        tensor.commit(granules * driver.granule)
        assert driver.calls == [(call, granules * driver.granule) for call in ("create", "map", "grant")]
        driver.calls.clear()


def test_each_segment_that_grows_is_one_run(driver: JournalDriver) -> None:
    with ExtensibleTensor(32 * driver.granule, driver, segments=4) as tensor:
        tensor.commit(3 * driver.granule)
        assert driver.names() == ["create", "map", "grant"] * 4
        tensor.commit([3 * driver.granule, 8 * driver.granule, 3 * driver.granule, 4 * driver.granule])
        assert driver.names() == ["create", "map", "grant"] * 2
        assert extents(tensor) == [(0, 3), (8, 11), (11, 16), (16, 19), (24, 27), (27, 28)]


def test_growth_inside_a_mapped_granule_maps_nothing(driver: JournalDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(1)
        driver.names()
        tensor.commit(driver.granule)
        assert driver.names() == ["zero", "synchronise"]
        assert tensor.allocations[0].nbytes == tensor.physical_bytes == driver.granule


def test_the_same_commit_again_does_nothing(driver: JournalDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver, segments=2) as tensor:
        tensor.commit(5)
        before = tensor.allocations, tensor.generation
        driver.names()
        tensor.commit(5)
        assert driver.names() == []
        assert (tensor.allocations, tensor.generation) == before


def test_a_shared_granule_is_backed_once_by_the_segment_that_needs_it_first(driver: JournalDriver) -> None:
    granule = driver.granule
    with ExtensibleTensor(3 * granule, driver, segments=2) as tensor:
        tensor.commit([0, 1])
        assert extents(tensor) == [(1, 2)]
        tensor.commit(3 * granule // 2)
        assert extents(tensor) == [(0, 1), (1, 2), (2, 3)]
        assert tensor.physical_bytes == 3 * granule


def test_unequal_segments_grow_each_as_a_prefix_of_its_place(driver: JournalDriver) -> None:
    """T2."""
    granule = driver.granule
    sizes = [granule + 1, 3 * granule, 5]
    with ExtensibleTensor(sum(sizes), driver, segments=sizes) as tensor:
        tensor.commit([7, 2 * granule, 5])
        assert tensor.committed == (7, 2 * granule, 5)
        for offset, nbytes in zip(tensor.segment_offsets, tensor.committed, strict=True):
            poke(tensor.base_address + offset, b"\1" * nbytes)
            assert peek(tensor.base_address + offset, nbytes) == b"\1" * nbytes


def test_growth_keeps_contents(driver: JournalDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver, segments=2) as tensor:
        tensor.commit(10)
        for offset in tensor.segment_offsets:
            poke(tensor.base_address + offset, b"0123456789")
        for nbytes in (11, driver.granule, driver.granule + 1, 4 * driver.granule):
            tensor.commit(nbytes)
            for offset in tensor.segment_offsets:
                assert peek(tensor.base_address + offset, 11) == b"0123456789\0"


def test_chunks_bound_each_allocation(driver: JournalDriver) -> None:
    """T5."""
    granule = driver.granule
    with ExtensibleTensor(32 * granule, driver, segments=2, chunk=3 * granule + 5) as tensor:
        tensor.commit(7 * granule)
        assert extents(tensor) == [(0, 3), (3, 6), (6, 7), (16, 19), (19, 22), (22, 23)]
        assert driver.names() == ["create", "map", "create", "map", "create", "map", "grant"] * 2


def test_nothing_is_committed_by_a_commit_of_nothing(driver: JournalDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver, segments=2) as tensor:
        tensor.commit(0)
        assert (tensor.state, tensor.committed, tensor.physical_bytes) == ("committed", (0, 0), 0)
        assert driver.names() == []


def test_two_tensors_of_a_device_share_its_accounts() -> None:
    with ExtensibleTensor(1 << 30) as one, ExtensibleTensor(1 << 30, device="host:0") as other:
        assert one.driver is other.driver
        assert one.device == other.device == "host"
        assert not one.base_address <= other.base_address < one.base_address + one.capacity


def test_a_tensor_that_was_closed_gives_everything_back_and_allows_nothing(driver: JournalDriver) -> None:
    """I3."""
    tensor = ExtensibleTensor(8 * driver.granule, driver, segments=2)
    tensor.commit(driver.granule + 1)
    tensor.close()
    tensor.close()
    assert (tensor.state, tensor.committed, tensor.physical_bytes) == ("closed", (0, 0), 0)
    assert accounts(driver) == Accounts()
    driver.names()
    for call in (
        lambda: tensor.commit(0),
        tensor.release_physical,
        tensor.restore,
        tensor.view,
        lambda: tensor.segment_view(0),
        tensor.registrable,
        lambda: tensor.lease(0, owner="nixl"),
    ):
        with pytest.raises(StateError, match=r"closed.*make a new one") as caught:
            call()
        assert caught.value.state == "closed"
    assert driver.names() == []


def test_a_tensor_says_in_one_line_what_it_has(driver: JournalDriver) -> None:
    tensor = ExtensibleTensor(1 << 30, driver, segments=2)
    tensor.commit(5)
    numbers = "10 of 1073741824 bytes committed in 2 segments"
    assert repr(tensor) == f"<ExtensibleTensor on host, {numbers} at {tensor.base_address:#x}, committed>"
    tensor.close()
    assert repr(tensor).endswith("closed>")
