"""D13: streams that a caller names are waited for instead of the device, and their captures forbid every change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest

from tests.emulated.vendor import CUDA, function, opened
from tests.emulator.control import Control
from vmmcache import ExtensibleTensor, StateError, VmmDriver

PREFIX = "cu" if CUDA else "hip"
WAIT, WAIT_FOR_STREAM = function("synchronise"), f"{PREFIX}StreamSynchronize"


@pytest.fixture
def driver() -> Iterator[VmmDriver]:
    driver = opened(0)
    yield driver
    driver.streams = ()


@pytest.fixture
def stream(driver: VmmDriver, control: Control) -> Iterator[int]:
    handle = ctypes.c_void_p()
    with driver.current():
        create = control.cuStreamCreate if CUDA else control.hipStreamCreateWithFlags
        assert create(ctypes.byref(handle), 1) == 0  # not blocking: the null stream does not wait for it
    assert handle.value is not None
    yield handle.value
    with driver.current():
        destroy = control.cuStreamDestroy_v2 if CUDA else control.hipStreamDestroy
        assert destroy(handle) == 0


def test_named_streams_are_waited_for_and_not_the_device(driver: VmmDriver, control: Control, stream: int) -> None:
    driver.streams = (stream,)
    tensor = ExtensibleTensor(8 * driver.granule, driver, chunk=driver.granule)
    tensor.commit(4 * driver.granule)
    mark = control.mark()
    tensor.commit(driver.granule)
    calls = control.calls(mark)
    assert calls.count(WAIT_FOR_STREAM) == 2  # the null stream, where our own work goes, and the named one
    assert WAIT not in calls
    assert calls.index(WAIT_FOR_STREAM) < calls.index(function("unmap"))
    tensor.close()
    assert control.violations() == []


@pytest.mark.parametrize("operation", ["grow", "shrink", "release_physical", "close"])
def test_nothing_changes_while_a_named_stream_captures(
    driver: VmmDriver, control: Control, stream: int, operation: str
) -> None:
    driver.streams = (stream,)
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(4 * driver.granule)
    operations: dict[str, Callable[[], None]] = {
        "grow": lambda: tensor.commit(8 * driver.granule),
        "shrink": lambda: tensor.commit(0),
        "release_physical": tensor.release_physical,
        "close": tensor.close,
    }
    begin = control.cuStreamBeginCapture_v2 if CUDA else control.hipStreamBeginCapture
    end = control.cuStreamEndCapture if CUDA else control.hipStreamEndCapture
    handle, graph = ctypes.c_void_p(stream), ctypes.c_void_p()
    with driver.current():
        assert begin(handle, 2) == 0
    mark = control.mark()
    with pytest.raises(StateError, match=f"stream {stream:#x} is capturing") as caught:
        operations[operation]()
    assert caught.value.state == "capturing"
    assert not {function(verb) for verb in ("create", "map", "unmap", "zero")} & set(control.calls(mark))
    assert tensor.committed == (4 * driver.granule,)
    with driver.current():
        assert end(handle, ctypes.byref(graph)) == 0
    tensor.close()
    assert control.violations() == []
