"""Every call by which a device is opened, and by which memory is shared, fails in turn, with every code."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Final

import pytest

from tests.emulated.trial import CODES, NAMELESS, Fault, check_error
from tests.emulated.vendor import CUDA, NAME, leave, opened, stance
from tests.emulator.control import Control
from tests.emulator.journal import Record
from vmmcache import DriverError, DriverUnavailable, Mapping, OutOfDeviceMemory, VmmDriver
from vmmcache.plugins.host import find_driver

COUNTED: Final = "counted: injected vendor faults"
ATTRIBUTE: Final = "cuDeviceGetAttribute" if CUDA else "hipDeviceGetAttribute"
GIVE_BACK: Final = {f"{'cu' if CUDA else 'hip'}{call}" for call in ("MemUnmap", "MemRelease", "MemAddressFree")}
ENTER: Final = ("cuCtxPushCurrent", "hipGetDevice", "hipSetDevice")
LEAVE: Final = ("cuCtxPopCurrent", "hipSetDevice")

RecordProperty = Callable[[str, object], None]


def fresh(index: int = 1) -> VmmDriver:
    """A driver that nobody else has; `open_driver` would give the one it has."""
    return find_driver(NAME).spec.open(index)


def each_fault(control: Control, action: Callable[[], object]) -> Iterator[tuple[Record, object]]:
    """Do something again and again, each time with another of its calls failing: the fault, and what came out of it."""
    before = stance(control)
    for nth in itertools.count(1):
        for code in CODES:
            since = control.mark()
            Fault(code, nth)(control)
            outcome: object = None
            # A driver of an earlier turn that is collected now would give its context back, and take the fault for it.
            gc.disable()
            try:
                outcome = action()
            except DriverError as error:
                outcome = error.with_traceback(None)
            finally:
                control.fail_nothing()
                gc.enable()
            faults = [record for record in control.journal(since) if "injected" in record.arguments]
            if not faults:
                return
            leave(control, before, faults)
            yield faults[0], outcome
            del outcome


def test_a_device_is_opened_or_says_why_not_and_what_was_lost(
    control: Control, record_property: RecordProperty
) -> None:
    """D9, D12: a trial that fails is a loss that is told, and costs nothing; anything else is the error."""
    sound = fresh()
    retained = control.primary_retained(1) if CUDA else 0
    injected = lost = refused = 0
    for fault, outcome in each_fault(control, fresh):
        injected += 1
        code = fault.arguments["injected"]
        if isinstance(outcome, DriverError):
            refused += 1
            if (fault.call, code) == (ATTRIBUTE, 1):
                assert isinstance(outcome, DriverUnavailable)
                assert "no virtual memory management" in outcome.reason
            else:
                check_error(outcome, [fault])
        else:
            assert isinstance(outcome, VmmDriver)
            told = any(fault.call in loss and str(code) in loss for loss in outcome.losses)
            lost += told
            no = (fault.call, code) == (ATTRIBUTE, 1)  # an older library knows no newer attribute: that is a no
            assert told or no or fault.call in {*GIVE_BACK, *LEAVE}
            assert told or no or outcome.losses == sound.losses
        assert control.leaks() is None
        assert stance(control) == 0
    del outcome
    gc.collect()
    assert not CUDA or control.primary_retained(1) == retained
    assert injected >= 200
    assert refused >= 50
    assert lost >= 50
    again = fresh()
    assert (again.losses, again.granule) == (sound.losses, sound.granule)
    record_property(COUNTED, injected)


def test_what_a_trial_took_goes_back_also_where_that_is_refused_once(control: Control) -> None:
    for call in sorted(GIVE_BACK):
        Fault(999, call=call)(control)
        assert fresh().losses == opened(1).losses
        assert control.leaks() is None


@pytest.mark.skipif(not CUDA, reason="HIP has no contexts to give back")
def test_a_context_that_is_not_taken_back_is_a_warning_and_no_crash(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no caller to raise to: the driver is being collected."""
    driver = fresh()
    control.fail("cuDevicePrimaryCtxRelease", 4)
    with caplog.at_level(logging.WARNING):
        del driver
        gc.collect()
    assert "cuDevicePrimaryCtxRelease: CUDA_ERROR_DEINITIALIZED (4" in caplog.text
    assert control.cuDevicePrimaryCtxRelease_v2(1) == 0


@pytest.fixture
def memory() -> Iterator[Mapping]:
    """A granted granule of device 1, and three drivers' worth of verbs on it."""
    driver = opened(1)
    reservation = driver.reserve(driver.granule)
    mapping = driver.map(reservation, 0, driver.create(driver.granule))
    driver.grant([mapping])
    yield mapping
    driver.synchronise()
    driver.unmap(mapping)
    driver.release(mapping.allocation)
    driver.free(reservation)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("verb", ["export", "import", "dma-buf", "memory", "read", "write", "copy", "zero"])
def test_a_verb_is_done_or_says_what_failed_and_leaves_nothing(
    verb: str, memory: Mapping, control: Control, record_property: RecordProperty
) -> None:
    driver, granule = opened(1), memory.nbytes
    shared = driver.export_handle(memory.allocation, "posix_fd")
    assert isinstance(shared, int)
    verbs: dict[str, Callable[[], object]] = {
        "export": lambda: os.close(int(driver.export_handle(memory.allocation, "posix_fd"))),
        "import": lambda: driver.release(driver.import_handle(shared, "posix_fd", granule)),
        "dma-buf": lambda: os.close(driver.export_dmabuf(memory.address, granule)),
        "memory": driver.memory_info,
        "read": lambda: driver.read(memory.address, 8),
        "write": lambda: driver.write(memory.address, b"12345678"),
        "copy": lambda: driver.copy(memory.address, memory.address + 4096, 8),
        "zero": lambda: driver.zero(memory.address, 8),
    }
    injected = 0
    descriptors, held, left = _descriptors(), driver.held, control.leaks()
    for fault, outcome in each_fault(control, verbs[verb]):
        injected += 1
        lost = [entry for entry in driver._VmmDriver__allocations.values() if entry != memory.allocation]  # type: ignore[attr-defined]  # a test of what is in the books
        if lost:
            # Imported, and then not taken back: still there to be given back.
            assert verb == "import"
            assert isinstance(outcome, DriverError)
            assert "Release" in fault.call or fault.call in ENTER
            driver.release(*lost)
        elif isinstance(outcome, DriverUnavailable):
            assert (fault.call, fault.arguments["injected"]) == (ATTRIBUTE, 1)
            assert "no dma-buf" in outcome.reason
        elif outcome is None or not isinstance(outcome, DriverError):
            flag = verb == "dma-buf" and fault.arguments["injected"] in (1, 801)
            assert fault.call in LEAVE or (flag and fault.call == "cuMemGetHandleForAddressRange")
        else:
            check_error(outcome, [fault])
        assert (_descriptors(), driver.held, control.leaks()) == (descriptors, held, left)
        assert stance(control) == 0
    os.close(shared)
    assert injected >= len(CODES)
    record_property(COUNTED, injected)


def test_a_status_without_a_text_is_still_an_error_with_call_code_and_name(control: Control) -> None:
    """D12: also where asking for the text fails by itself."""
    for code in CODES:
        with contextlib.ExitStack() as stack:
            caught = stack.enter_context(pytest.raises(DriverError))
            Fault(code, times=2)(control)
            fresh(0)
        error = caught.value
        assert error.code == code
        assert error.call in str(error)
        assert (error.name == "unknown") == (code in NAMELESS)
        control.fail_nothing()


def test_a_kind_of_handle_is_tried_there_and_back(control: Control) -> None:
    """D9: it counts for nothing that memory can be created with it, or that a handle comes out."""
    for verb in ("ExportTo", "ImportFrom"):
        call = f"{'cu' if CUDA else 'hip'}Mem{verb}ShareableHandle"
        control.fail(call, 801, times=9)
        driver = fresh()
        control.fail_nothing()
        allocation = driver.create(driver.granule)
        assert allocation.handle_types == frozenset()
        driver.release(allocation)
        assert any(loss.startswith("posix_fd handles") and f"{NAME}: {call}: " in loss for loss in driver.losses)


def test_a_device_is_opened_also_where_torch_has_all_of_its_memory_idle(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: a trial, too, asks torch to give back what it does not use."""
    sound = fresh()
    control.set(other_use=sound.memory_info().free)
    with pytest.raises(OutOfDeviceMemory, match="on device 1"):
        fresh()

    def empty_cache() -> None:
        control.set(other_use=0)

    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=empty_cache)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert fresh().losses == sound.losses


def test_memory_that_was_asked_to_be_reachable_and_is_not_is_a_loss(control: Control) -> None:
    """D9: the flag is a request; what the driver says of the memory afterwards counts."""
    control.set(rdma_honoured=0)
    driver = fresh()
    control.set(rdma_honoured=1)
    allocation = driver.create(driver.granule)
    assert allocation.rdma_capable is False
    assert list(allocation.handle_types) == ["posix_fd"]
    driver.release(allocation)
    assert any("is not reachable by RDMA" in loss for loss in driver.losses)
