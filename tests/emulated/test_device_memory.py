"""Memory of an emulated device: a neighbour's use, running out, torch's cache, fresh bytes, dma-buf."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.emulated.vendor import CUDA, NAME, function, opened
from tests.emulator.control import Control
from vmmcache import (
    DriverError,
    DriverUnavailable,
    ExtensibleTensor,
    MemoryInfo,
    OutOfDeviceMemory,
    StateError,
    VmmDriver,
)
from vmmcache.units import MIB

CREATE, RESERVE = function("create"), function("reserve")


@pytest.fixture
def driver() -> VmmDriver:
    return opened(1)


def test_what_a_neighbour_uses_is_not_free(driver: VmmDriver, control: Control) -> None:
    before = driver.memory_info()
    control.set(other_use=512 * MIB)
    assert driver.memory_info() == MemoryInfo(before.free - 512 * MIB, before.total, "driver")
    control.set(other_use=0)
    assert driver.memory_info() == before


def test_without_memory_the_error_has_the_numbers_and_the_tensor_is_as_it_was(
    driver: VmmDriver, control: Control
) -> None:
    """D6, D12; when the neighbour has gone, a retry succeeds."""
    granule = driver.granule
    tensor = ExtensibleTensor(64 * granule, driver)
    tensor.commit(2 * granule)
    control.set(other_use=driver.memory_info().free - 3 * granule)
    with pytest.raises(
        OutOfDeviceMemory, match=f"{CREATE} of 20 MiB on device 1: .*6 MiB of 16 GiB are free"
    ) as caught:
        tensor.commit(12 * granule)
    error = caught.value
    assert (error.requested, error.free, error.committed) == (10 * granule, 3 * granule, 2 * granule)
    assert (error.driver, error.call, error.code) == (NAME, CREATE, 2)
    assert isinstance(error, MemoryError)
    assert "Commit less" in str(error)
    assert tensor.committed_bytes == tensor.physical_bytes == 2 * granule
    control.set(other_use=0)
    tensor.commit(12 * granule)
    tensor.close()


def _torch_with(monkeypatch: pytest.MonkeyPatch, **cuda: object) -> None:
    """A torch that has initialised the device, which no torch can do here."""
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, **cuda))
    )


def test_torchs_idle_memory_goes_back_first(
    driver: VmmDriver, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: once, and then the call is made again."""
    granule = driver.granule
    emptied = []

    def empty_cache() -> None:
        emptied.append(True)
        control.set(other_use=0)

    control.set(other_use=driver.memory_info().free)
    _torch_with(monkeypatch, empty_cache=empty_cache)
    allocation = driver.create(granule)
    assert emptied == [True]
    driver.release(allocation)
    control.fail(CREATE, 2, times=2)
    mark = control.mark()
    with pytest.raises(OutOfDeviceMemory):
        driver.create(granule)
    assert control.calls(mark).count(CREATE) == 2


def test_nothing_is_called_while_torch_captures_a_graph(
    driver: VmmDriver, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13."""

    class OnDevice:
        def __init__(self, index: int) -> None:
            assert index == 1

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    tensor = ExtensibleTensor(4 * driver.granule, driver)
    tensor.commit(driver.granule)
    with monkeypatch.context() as patch:
        _torch_with(patch, is_current_stream_capturing=lambda: True, device=OnDevice)
        mark = control.mark()
        operations: list[Callable[[], object]] = [
            lambda: tensor.commit(2 * driver.granule),
            tensor.release_physical,
            tensor.close,
        ]
        for operation in operations:
            with pytest.raises(StateError, match="capturing a graph") as caught:
                operation()
            assert caught.value.state == "capturing"
        assert control.calls(mark) == []
    tensor.close()


def test_new_bytes_are_zero_although_new_memory_is_not(driver: VmmDriver, control: Control) -> None:
    """I7, seen past the driver: the library leaves undone what nobody waits for."""
    granule = driver.granule
    tensor = ExtensibleTensor(4 * granule, driver)
    for size in (100, granule, 3 * granule):
        tensor.commit(size)
        assert control.count("pending") == 0
        assert ctypes.string_at(tensor.base_address, size) == bytes(size)
        ctypes.memset(tensor.base_address, 0x77, size)
        tensor.commit(0)
    tensor.close()


@pytest.mark.skipif(not CUDA, reason="HIP has no such flag")
@pytest.mark.parametrize(("answer", "flags"), [(0, [1]), (1, [1, 0]), (801, [1, 0])])
def test_a_dma_buf_is_asked_for_again_without_the_flag_that_older_drivers_refuse(
    driver: VmmDriver, control: Control, answer: int, flags: list[int]
) -> None:
    """libfabric #10976 and #10995."""
    tensor = ExtensibleTensor(4 * driver.granule, driver)
    tensor.commit(2 * driver.granule)
    before = control.get("dmabuf_pcie_code")
    control.set(dmabuf_pcie_code=answer)
    mark = control.mark()
    fd = driver.export_dmabuf(tensor.base_address, 2 * driver.granule)
    assert os.fstat(fd).st_size == 2 * driver.granule
    os.close(fd)
    calls = [record for record in control.journal(mark) if record.call == "cuMemGetHandleForAddressRange"]
    assert [record.arguments["flags"] for record in calls] == flags
    control.set(dmabuf_pcie_code=before)
    tensor.close()


@pytest.mark.skipif(not CUDA, reason="HIP has no such flag")
def test_a_dma_buf_that_is_refused_in_both_ways_is_none(driver: VmmDriver, control: Control) -> None:
    """D9: the attribute says that there are dma-bufs, and a call is what counts."""
    with ExtensibleTensor(driver.granule, driver) as tensor:
        tensor.commit(driver.granule)
        control.fail("cuMemGetHandleForAddressRange", 801, times=2)
        with pytest.raises(DriverUnavailable, match="says that it has dma-buf, and exports none"):
            driver.export_dmabuf(tensor.base_address, driver.granule)
        control.fail("cuMemGetHandleForAddressRange", 999, nth=1)
        with pytest.raises(DriverError, match="999"):
            driver.export_dmabuf(tensor.base_address, driver.granule)


@pytest.mark.skipif(CUDA, reason="no CUDA driver is known to refuse alignments")
def test_addresses_are_had_also_where_every_alignment_is_refused(driver: VmmDriver, control: Control) -> None:
    """vllm #43022."""
    control.set(reserve_aligned_code=1)
    mark = control.mark()
    tensor = ExtensibleTensor(4 * driver.granule, driver)
    control.set(reserve_aligned_code=0)
    asked = [record.arguments["alignment"] for record in control.journal(mark) if record.call == RESERVE]
    assert asked == [driver.granule, 0]
    assert tensor.base_address % driver.granule == 0
    tensor.close()
