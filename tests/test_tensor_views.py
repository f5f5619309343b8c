"""Views: torch tensors whose storage is exactly the committed bytes, of any dtype, at addresses that stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.helpers import Accounts, GpuLikeDriver, accounts, peek, poke, run_python
from vmmcache import ConfigError, DriverUnavailable, ExtensibleTensor
from vmmcache_host._driver import HostDriver

DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


@pytest.fixture
def tensor(driver: HostDriver) -> ExtensibleTensor:
    """Three unequal segments; the last begins inside a granule."""
    granule = driver.granule
    return ExtensibleTensor(8 * granule, driver, segments=[2 * granule, 3 * granule // 2, 9 * granule // 2])


def storage(view: torch.Tensor) -> tuple[int, int]:
    """Address and size of what really lies under a view."""
    return view.untyped_storage().data_ptr(), view.untyped_storage().nbytes()


# Exactness ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 17, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 3 << 20])
def test_the_storage_of_a_segment_view_is_exactly_the_committed_bytes(tensor: ExtensibleTensor, nbytes: int) -> None:
    """I6: neither the reservation, nor rounded to a granule."""
    tensor.commit([0, nbytes, 0])
    view = tensor.segment_view(1)
    assert storage(view) == (tensor.base_address + tensor.segment_offsets[1], nbytes)
    assert (view.shape, view.dtype, view.device.type) == ((nbytes,), torch.uint8, "cpu")
    assert view.data_ptr() == tensor.base_address + tensor.segment_offsets[1]
    del view
    tensor.close()


def test_a_view_of_nothing_committed_has_an_empty_storage(tensor: ExtensibleTensor) -> None:
    for view in (tensor.segment_view(0), tensor.segment_view(0, torch.float32, (0, 5))):
        assert view.untyped_storage().nbytes() == 0
        assert view.numel() == 0
    del view
    tensor.close()


def test_a_view_follows_no_later_growth_and_a_new_one_does(tensor: ExtensibleTensor) -> None:
    tensor.commit(100)
    before = tensor.segment_view(0)
    tensor.commit(200)
    after = tensor.segment_view(0)
    assert (storage(before)[1], storage(after)[1]) == (100, 200)
    assert before.data_ptr() == after.data_ptr()
    del before, after
    tensor.close()


def test_a_view_of_the_reservation_spans_all_of_it_before_there_is_memory(tensor: ExtensibleTensor) -> None:
    """T3."""
    view = tensor.view()
    assert storage(view) == (tensor.base_address, tensor.capacity)
    tensor.commit(5)
    view[:5] = 7
    assert peek(tensor.base_address, 5) == b"\7" * 5
    del view
    tensor.close()


def test_a_capacity_that_is_no_multiple_of_a_page_is_spanned_exactly(driver: HostDriver) -> None:
    tensor = ExtensibleTensor(12345, driver)
    assert storage(tensor.view())[1] == 12345
    assert tensor.view(torch.float64).shape == (12345 // 8,)
    tensor.close()


def test_a_shape_that_needs_fewer_bytes_is_a_view_into_the_whole_storage(tensor: ExtensibleTensor) -> None:
    tensor.commit(1000)
    view = tensor.segment_view(0, torch.int16, (3, 5))
    assert (view.shape, view.stride(), view.storage_offset()) == ((3, 5), (5, 1), 0)
    assert storage(view) == (tensor.base_address, 1000)
    del view
    tensor.close()


def test_a_view_reads_and_writes_the_very_bytes(tensor: ExtensibleTensor) -> None:
    tensor.commit([0, 0, 64])
    address = tensor.base_address + tensor.segment_offsets[2]
    poke(address, bytes(range(64)))
    view = tensor.segment_view(2)
    assert bytes(view.tolist()) == bytes(range(64))
    view.fill_(9)
    assert peek(address, 64) == b"\x09" * 64
    del view
    tensor.close()


# dtypes ---------------------------------------------------------------------------------------------------------------


def test_the_dtypes_that_caches_are_made_of_are_among_those_tested() -> None:
    assert {torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8} <= set(DTYPES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_lies_over_the_same_bytes(driver: HostDriver, dtype: torch.dtype) -> None:
    """T11."""
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(4096)
    poke(tensor.base_address, bytes(range(256)) * 16)
    view = tensor.segment_view(0, dtype)
    assert view.dtype == dtype
    assert view.numel() * dtype.itemsize == 4096
    assert storage(view) == (tensor.base_address, 4096)
    assert bytes(view.view(torch.uint8).tolist()) == bytes(range(256)) * 16
    whole = tensor.view(dtype, (tensor.capacity // dtype.itemsize // 4, 4))
    assert (whole.dtype, whole.data_ptr()) == (dtype, tensor.base_address)
    del view, whole
    tensor.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_values_survive_the_way_through_memory(tensor: ExtensibleTensor, dtype: torch.dtype) -> None:
    tensor.commit(4096)
    values = torch.linspace(-2, 2, 64).to(dtype)
    tensor.segment_view(0, dtype, (64,)).copy_(values)
    assert torch.equal(tensor.segment_view(0, dtype)[:64].view(torch.uint8), values.view(torch.uint8))
    tensor.close()


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "complaint"),
    [
        ("float32", None, "dtype='float32': must be a torch.dtype"),
        (4, None, "dtype=4: must be a torch.dtype"),
        (float, None, "must be a torch.dtype"),
        (None, 7, "shape=7: must be a sequence"),
        (None, "7", "shape='7': must be a sequence"),
        (None, (101,), "needs 101 B .*there are 100 B"),
        (None, (10, 11), "needs 110 B"),
        (torch.float32, (26,), "needs 104 B .26 x torch.float32., there are 100 B"),
        (None, (-1,), r"shape\[0\]=-1: must be at least 0"),
        (None, (2, 1.0), r"shape\[1\]=1.0: must be a whole number"),
        (None, (float("nan"),), r"shape\[0\]=nan: must be a whole number"),
        (None, (True,), r"shape\[0\]=True: must be a whole number"),
        (None, (1 << 40, 1 << 40), "there are 100 B"),
    ],
)
def test_a_dtype_or_shape_that_does_not_fit_is_refused_and_leaves_no_view(
    tensor: ExtensibleTensor, dtype: torch.dtype, shape: tuple[int, ...], complaint: str
) -> None:
    """And no view: a traceback that somebody keeps must not keep the tensor from being closed."""
    tensor.commit(100)
    with pytest.raises(ConfigError, match=complaint) as kept:
        tensor.segment_view(0, dtype, shape)
    assert kept.traceback
    tensor.close()


@pytest.mark.parametrize("index", [-1, 3, 1.0, None, "0"], ids=repr)
def test_a_segment_that_there_is_not_is_refused(tensor: ExtensibleTensor, index: int) -> None:
    with pytest.raises(ConfigError, match="segment="):
        tensor.segment_view(index)
    tensor.close()


def test_a_dtype_that_does_not_fit_the_address_is_refused(driver: HostDriver) -> None:
    tensor = ExtensibleTensor(4096, driver, segments=[6, 4090])
    tensor.commit([6, 4090])
    assert tensor.segment_view(1, torch.int16).shape == (2045,)
    with pytest.raises(ConfigError, match="no multiple of its 4 bytes"):
        tensor.segment_view(1, torch.float32)
    tensor.close()


def test_a_device_that_this_torch_has_not_is_a_reason_and_leaves_no_view() -> None:
    """The tests run on a torch for CPUs; the driver says that its memory is a GPU's."""
    driver = GpuLikeDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(100)
    views: list[Callable[[], object]] = [tensor.view, lambda: tensor.segment_view(0)]
    for make in views:
        with pytest.raises(DriverUnavailable, match="this torch cannot") as caught:
            make()
        assert "build of torch" in caught.value.cure
    tensor.close()
    assert accounts(driver) == Accounts()


def test_without_torch_everything_but_views_works() -> None:
    child = run_python("""
        import sys
        sys.modules["torch"] = None  # what Python itself does for a module that is not to be had
        import vmmcache
        tensor = vmmcache.ExtensibleTensor(1 << 30, segments=2)
        tensor.commit(100)
        tensor.lease(0, owner="nixl").release()
        tensor.release_physical(backup=True)
        tensor.restore()
        try:
            tensor.view()
        except vmmcache.DriverUnavailable as error:
            print(error.reason, "|", error.cure)
        tensor.close()
    """)
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.startswith("a view is a torch tensor, and torch is not installed | Install torch")
