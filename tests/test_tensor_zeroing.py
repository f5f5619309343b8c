"""I7: new bytes read as zero the first time they become visible, whoever wrote there before.

Every case runs on the host driver, whose fresh memory is zero by itself, and on one whose fresh memory is full of
somebody's bytes, as on a GPU.
"""

from __future__ import annotations

import pytest
import torch

from tests.helpers import DIRT, DirtyDriver, JournalDriver, peek
from vmmcache import ExtensibleTensor
from vmmcache_host._driver import HostDriver

SCRIBBLE = 0x77


@pytest.fixture(params=[HostDriver, DirtyDriver])
def driver(request: pytest.FixtureRequest) -> HostDriver:
    made: HostDriver = request.param()
    return made


def scribble(tensor: ExtensibleTensor) -> None:
    """Write on every byte that is mapped, through a view of the reservation, as a kernel that runs astray does."""
    everything = tensor.view()
    for allocated in tensor.registrable():
        start = allocated.base - allocated.allocation_offset - tensor.base_address
        everything[start : start + allocated.allocation_nbytes] = SCRIBBLE
    del everything


def visible(tensor: ExtensibleTensor, index: int = 0) -> bytes:
    return peek(tensor.base_address + tensor.segment_offsets[index], tensor.committed[index])


@pytest.mark.parametrize("nbytes", [1, 4097, 2 << 20, (4 << 20) + 1])
def test_the_first_bytes_are_zero(driver: HostDriver, nbytes: int) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(nbytes)
        assert visible(tensor) == bytes(nbytes)


def test_growth_into_new_granules_is_zero_and_keeps_what_was_there(driver: HostDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(driver.granule)
        scribble(tensor)
        tensor.commit(3 * driver.granule)
        assert visible(tensor) == bytes([SCRIBBLE]) * driver.granule + bytes(2 * driver.granule)


def test_growth_inside_a_mapped_granule_is_zero(driver: HostDriver) -> None:
    """Rounding had mapped the padding early, and somebody scribbled on it."""
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(100)
        scribble(tensor)
        tensor.commit(1000)
        assert visible(tensor) == bytes([SCRIBBLE]) * 100 + bytes(900)


def test_growth_from_padding_into_new_granules_is_zero(driver: HostDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(100)
        scribble(tensor)
        tensor.commit(2 * driver.granule + 7)
        assert visible(tensor) == bytes([SCRIBBLE]) * 100 + bytes(2 * driver.granule + 7 - 100)


def test_padding_is_zeroed_up_to_the_growth_and_no_further(driver: HostDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(100)
        scribble(tensor)
        tensor.commit(200)
        assert peek(tensor.base_address + 200, 1) == bytes([SCRIBBLE])
        tensor.commit(300)
        assert visible(tensor) == bytes([SCRIBBLE]) * 100 + bytes(200)


@pytest.mark.parametrize("low", [0, 10, 2 << 20])
def test_shrink_and_regrow_is_zero(driver: HostDriver, low: int) -> None:
    """The bytes cut off stay mapped where an allocation straddles the cut, with what was in them."""
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(3 * driver.granule)
        scribble(tensor)
        tensor.commit(low)
        tensor.commit(3 * driver.granule)
        assert visible(tensor) == bytes([SCRIBBLE]) * low + bytes(3 * driver.granule - low)


def test_shrink_and_regrow_past_the_old_size_is_zero(driver: HostDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver, chunk=driver.granule) as tensor:
        tensor.commit(3 * driver.granule)
        scribble(tensor)
        tensor.commit(driver.granule + 5)
        tensor.commit(5 * driver.granule)
        kept = driver.granule + 5
        assert visible(tensor) == bytes([SCRIBBLE]) * kept + bytes(5 * driver.granule - kept)


@pytest.mark.parametrize("first", [0, 1])
def test_a_granule_that_two_segments_share_is_zero_for_each_and_kept_for_the_other(
    driver: HostDriver, first: int
) -> None:
    half = 3 * driver.granule // 2
    with ExtensibleTensor(2 * half, driver, segments=2) as tensor:
        tensor.commit([half, 0] if first == 0 else [0, half])
        scribble(tensor)
        tensor.commit(half)
        assert visible(tensor, first) == bytes([SCRIBBLE]) * half
        assert visible(tensor, 1 - first) == bytes(half)


def test_a_shared_granule_that_stays_for_the_neighbour_is_zero_for_the_one_that_comes_back(driver: HostDriver) -> None:
    half = 3 * driver.granule // 2
    with ExtensibleTensor(2 * half, driver, segments=2) as tensor:
        tensor.commit(half)
        scribble(tensor)
        tensor.commit([0, half])
        tensor.commit(half)
        assert visible(tensor, 0) == bytes(half)
        assert visible(tensor, 1) == bytes([SCRIBBLE]) * half


def test_many_segments_in_one_granule_are_zeroed_each_by_itself(driver: HostDriver) -> None:
    size = driver.granule // 4
    with ExtensibleTensor(8 * size, driver, segments=8) as tensor:
        tensor.commit(size // 2)
        scribble(tensor)
        tensor.commit(size)
        for index in range(8):
            assert visible(tensor, index) == bytes([SCRIBBLE]) * (size // 2) + bytes(size // 2)


def test_restore_is_zero(driver: HostDriver) -> None:
    with ExtensibleTensor(16 * driver.granule, driver, segments=2) as tensor:
        tensor.commit([driver.granule + 1, 3 * driver.granule])
        scribble(tensor)
        tensor.release_physical()
        tensor.restore()
        for index, nbytes in enumerate(tensor.committed):
            assert visible(tensor, index) == bytes(nbytes)


def test_growth_after_a_restore_with_contents_is_zero(driver: HostDriver) -> None:
    """The backup holds what was visible; the padding beside it is as dirty as any other memory."""
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(100)
        scribble(tensor)
        tensor.release_physical(backup=True)
        tensor.restore()
        tensor.commit(driver.granule)
        assert visible(tensor) == bytes([SCRIBBLE]) * 100 + bytes(driver.granule - 100)


@pytest.mark.parametrize("keep", [False, True])
def test_a_rebuild_is_zero_beyond_what_it_keeps(driver: HostDriver, keep: bool) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(driver.granule)
        tensor.commit(2 * driver.granule)
        scribble(tensor)
        tensor.commit(driver.granule + 9, defragment=True, keep=keep)
        kept = driver.granule + 9 if keep else 0
        assert visible(tensor) == bytes([SCRIBBLE]) * kept + bytes(driver.granule + 9 - kept)
        scribble(tensor)
        tensor.commit(4 * driver.granule)
        assert visible(tensor)[driver.granule + 9 :] == bytes(3 * driver.granule - 9)


def test_an_exact_segment_that_grows_inside_its_allocation_is_zero_after_a_rebuild(driver: HostDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        for defragmenting in ({"keep": False}, {"keep": True}):
            tensor.commit(0)
            tensor.commit(50)
            scribble(tensor)
            tensor.commit(80, defragment=True, **defragmenting)
            assert visible(tensor) == bytes([SCRIBBLE]) * 50 + bytes(30)


def test_views_see_the_zeros(driver: HostDriver) -> None:
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(100)
        scribble(tensor)
        tensor.commit(1000)
        view = tensor.segment_view(0)
        assert int(torch.count_nonzero(view)) == 100
        del view


def test_zeroing_is_one_call_a_run_and_one_wait_and_none_where_fresh_memory_is_zero() -> None:
    """T4: on the host, fresh memory is a hole in a file, and nothing is spent on it."""
    driver = JournalDriver()
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(2 * driver.granule)
        assert "zero" not in driver.names()
        tensor.commit(2 * driver.granule - 5)
        driver.calls.clear()
        tensor.commit(4 * driver.granule)
        assert [call for call in driver.calls if call[0] in ("zero", "synchronise")] == [
            ("zero", 5),
            ("synchronise", 0),
        ]


def test_the_dirty_driver_is_dirty() -> None:
    """Or the tests above would show nothing."""
    driver = DirtyDriver()
    with ExtensibleTensor(8 * driver.granule, driver) as tensor:
        tensor.commit(100)
        assert peek(tensor.base_address + 100, 50) == bytes([DIRT]) * 50
