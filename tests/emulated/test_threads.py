"""Where a thread stands on entering an operation, it stands on leaving it (D7)."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.emulated.vendor import CUDA, function, opened, stance
from tests.emulator.control import Control
from vmmcache import DriverError, ExtensibleTensor, VmmDriver

T = TypeVar("T")


def operations(tensor: ExtensibleTensor) -> list[Callable[[], object]]:
    """One of each."""
    granule = tensor.granule
    return [
        lambda: tensor.commit(granule),
        lambda: tensor.commit(3 * granule),
        lambda: tensor.commit(2 * granule, defragment=True, keep=True),
        lambda: tensor.commit(granule, defragment=True),
        lambda: tensor.release_physical(backup=True),
        tensor.restore,
        tensor.driver.memory_info,
        tensor.driver.synchronise,
        tensor.close,
    ]


@contextmanager
def standing(control: Control, device: int | None) -> Iterator[int]:
    """A thread with another device's context current (CUDA), or on another device (HIP); None: as it came."""
    if device is None:
        yield stance(control)
    elif CUDA:
        context = ctypes.c_void_p()
        assert control.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert control.cuCtxPushCurrent_v2(context) == 0
        yield _current(control)
        assert control.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
        assert control.cuDevicePrimaryCtxRelease_v2(device) == 0
    else:
        assert control.hipSetDevice(device) == 0
        yield device
        assert control.hipSetDevice(0) == 0


def _current(control: Control) -> int:
    if not CUDA:
        return stance(control)
    context = ctypes.c_void_p()
    assert control.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value or 0


@pytest.fixture
def driver() -> VmmDriver:
    return opened(1)


@pytest.mark.parametrize("device", [None, 0, 1], ids=["as it came", "on another device", "on this device"])
def test_a_thread_is_left_as_it_was(driver: VmmDriver, control: Control, device: int | None) -> None:
    def work() -> None:
        with standing(control, device):
            before, depth = _current(control), stance(control)
            tensor = ExtensibleTensor(8 * driver.granule, driver)
            for operation in operations(tensor):
                operation()
                assert (_current(control), stance(control)) == (before, depth)
            assert before == 0 or device is not None

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


@pytest.mark.parametrize("device", [None, 0], ids=["as it came", "on another device"])
def test_also_by_an_operation_that_fails(driver: VmmDriver, control: Control, device: int | None) -> None:
    refused: list[DriverError] = []

    def work() -> None:
        with standing(control, device):
            before, depth = _current(control), stance(control)
            tensor = ExtensibleTensor(8 * driver.granule, driver)
            tensor.commit(tensor.granule)
            for operation in operations(tensor):
                for verb in ("grant", "copy", "unmap", "synchronise"):
                    control.fail(function(verb), 999)
                try:
                    operation()
                except DriverError as error:
                    assert error.code == 999
                    refused.append(error)
                    control.fail_nothing()
                    assert (_current(control), stance(control)) == (before, depth)
                    operation()
                control.fail_nothing()
            tensor.close()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()
    assert len(refused) >= 5


def test_memory_is_on_the_device_asked_for(control: Control) -> None:
    """HIP since 7 allocates on the current device, whatever is asked for."""
    for index in (0, 1):
        driver, other = opened(index), 1 - index
        before = control.used(index), control.used(other)
        tensor = ExtensibleTensor(4 * driver.granule, driver)
        tensor.commit(3 * driver.granule)
        assert (control.used(index), control.used(other)) == (before[0] + 3 * driver.granule, before[1])
        assert driver.memory_info().free == driver.memory_info().total - control.used(index)
        tensor.close()
        assert (control.used(index), control.used(other)) == before


def test_the_device_is_entered_once_however_deep(driver: VmmDriver, control: Control) -> None:
    mark = control.mark()
    with driver.current(), driver.current():
        inside = stance(control)
        driver.synchronise()
        with driver.current():
            assert stance(control) == inside
        assert stance(control) == inside
    assert inside == 1
    assert stance(control) == 0
    calls = [call for call in control.calls(mark) if call != "hipGetDevice"]
    enter, leave = ("cuCtxPushCurrent", "cuCtxPopCurrent") if CUDA else ("hipSetDevice", "hipSetDevice")
    assert calls == [enter, function("synchronise"), leave]


def test_every_verb_by_itself_is_called_on_the_device(driver: VmmDriver, control: Control) -> None:
    """D7: no vendor says which of its calls need no context, and a thread may have none."""
    called: list[list[str]] = []

    def alone(verb: Callable[[], T]) -> T:
        mark = control.mark()
        result = verb()
        called.append(control.calls(mark))
        return result

    def work() -> None:
        granule = driver.granule
        reservation = alone(lambda: driver.reserve(granule))
        allocation = alone(lambda: driver.create(granule))
        mapping = alone(lambda: driver.map(reservation, 0, allocation))
        address = mapping.address
        alone(lambda: driver.grant([mapping]))
        alone(lambda: driver.grant([mapping], writable=False))
        alone(lambda: driver.grant([mapping]))
        alone(lambda: driver.zero(address, granule))
        alone(lambda: driver.write(address, b"here"))
        alone(lambda: driver.copy(address + 4096, address, 4096))
        assert alone(lambda: driver.read(address + 4096, 4)) == b"here"
        alone(driver.synchronise)
        shared = alone(lambda: driver.export_handle(allocation, "posix_fd"))
        imported = alone(lambda: driver.import_handle(shared, "posix_fd", granule))
        os.close(alone(lambda: driver.export_dmabuf(address, granule)))
        os.close(int(shared))
        alone(lambda: driver.release(imported))
        alone(lambda: driver.unmap(mapping))
        alone(lambda: driver.release(allocation))
        alone(lambda: driver.free(reservation))

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()
    enter, leave = ("cuCtxPushCurrent", "cuCtxPopCurrent") if CUDA else ("hipSetDevice", "hipSetDevice")
    for calls in called:
        first, *inside, last = (call for call in calls if call != "hipGetDevice")
        assert (first, last) == (enter, leave), calls
        assert inside
        assert enter not in inside
    assert len(called) == 18


@pytest.mark.parametrize("code", [201, 700, 12345])
def test_where_a_thread_cannot_leave_the_device_what_was_done_stays_done_and_a_warning_says_so(
    driver: VmmDriver, control: Control, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    tensor = ExtensibleTensor(4 * driver.granule, driver)
    call, nth = ("cuCtxPopCurrent", 1) if CUDA else ("hipSetDevice", 2)
    control.fail(call, code, nth=nth)
    with caplog.at_level(logging.WARNING):
        tensor.commit(driver.granule)
    assert tensor.committed_bytes == driver.granule
    assert f"{call}: " in caplog.text
    assert f"({code}, " in caplog.text
    assert stance(control) == 1
    assert (control.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) if CUDA else control.hipSetDevice(0)) == 0
    tensor.close()


@pytest.mark.skipif(CUDA, reason="CUDA has no last error of a thread")
def test_a_failure_is_raised_and_not_left_behind_for_the_engine(driver: VmmDriver, control: Control) -> None:
    """vLLM #36651: whoever asks for the last error after a kernel would take it for the kernel's."""
    tensor = ExtensibleTensor(4 * driver.granule, driver)
    for code in (2, 700, 12345):
        control.fail("hipMemCreate", code)
        with pytest.raises(DriverError):
            tensor.commit(driver.granule)
        assert control.hipPeekAtLastError() == 0
    tensor.close()
