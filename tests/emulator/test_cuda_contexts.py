"""Initialisation, entry points and contexts of the CUDA front. [T]: seen with a real libcuda (535, no module)."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

import pytest

from tests.emulator.conftest import Load
from tests.emulator.direct import MIB2, Library, buffer

NOT_INITIALIZED, STUB, NO_DEVICE, INVALID_CONTEXT, DESTROYED = 3, 34, 100, 201, 709


def test_before_initialisation_only_the_version_is_known(load: Load) -> None:
    """[T]: cuDriverGetVersion works, everything else answers 3, nonsense to the range call 1."""
    cuda = load("cuda-12.2")
    assert cuda.get("cuDriverGetVersion") == (0, 12020)
    for call in "cuDeviceGetCount", "cuCtxGetCurrent", "cuMemGetInfo_v2", "cuStreamCreate":
        assert cuda(call, buffer(), 0, 0) == NOT_INITIALIZED
    assert cuda("cuMemAddressReserve", buffer(), MIB2, 0, 0, 0) == NOT_INITIALIZED
    assert cuda("cuMemGetHandleForAddressRange", buffer(), 0, 0, 1, 0) == 1
    assert cuda("cuInit", 1) == 1
    assert cuda("cuInit", 0) == 0
    assert cuda.get("cuDeviceGetCount") == (0, 1)


def test_without_a_device_initialisation_fails_each_time(load: Load) -> None:
    """[T]: 100, again 100, and then 3 for the rest."""
    cuda = load("cuda-no-device")
    assert [cuda("cuInit", 0), cuda("cuInit", 0)] == [NO_DEVICE, NO_DEVICE]
    assert cuda("cuDeviceGetCount", buffer()) == NOT_INITIALIZED


def test_a_stub_answers_one_thing(load: Load) -> None:
    """Facts 3, "Stub"."""
    cuda = load("cuda-stub")
    assert cuda("cuInit", 0) == STUB
    assert cuda("cuDriverGetVersion", buffer()) == STUB
    assert cuda("cuGetProcAddress_v2", b"cuInit", buffer(), 13000, 0, buffer()) == STUB


@pytest.mark.parametrize(
    ("name", "version", "found", "status"),
    [
        ("cuMemCreate", 10020, True, 0),
        ("cuMemCreate", 13000, True, 0),
        ("cuMemCreate", 10010, False, 2),
        ("cuMemGetInfo", 3020, True, 0),
        ("cuMemGetInfo_v2", 3020, False, 1),
        ("cuNoSuchThing", 13000, False, 1),
        ("cuDriverGetVersion", 12000, True, 0),
    ],
)
def test_entry_points_are_found_by_name_and_version(
    cuda: Library, name: str, version: int, found: bool, status: int
) -> None:
    """[T]: 0 with NULL for what it does not know; 1 unknown, 2 too old a version; a suffixed name is unknown."""
    pointer, answer = ctypes.c_void_p(), ctypes.c_int(-1)
    code = cuda("cuGetProcAddress_v2", name.encode(), ctypes.byref(pointer), version, 0, ctypes.byref(answer))
    assert (code, bool(pointer.value), answer.value) == (0, found, status)


def test_the_first_version_of_the_lookup_answers_not_found(cuda: Library) -> None:
    """[T]: v1 answers 500."""
    assert cuda("cuGetProcAddress", b"cuNoSuchThing", buffer(), 13000, 0) == 500
    assert cuda("cuGetProcAddress", b"cuInit", buffer(), 13000, 0) == 0


def test_an_entry_point_newer_than_the_driver_is_unknown(load: Load) -> None:
    """[H] cuGetProcAddress; cuCtxCreate_v4 came with 12.5."""
    old, new = load("cuda-12.2"), load("cuda-13")
    pointers = []
    for cuda in old, new:
        pointer = ctypes.c_void_p()
        cuda.ok("cuGetProcAddress_v2", b"cuCtxCreate", ctypes.byref(pointer), 12050, 0, None)
        pointers.append(pointer.value == ctypes.cast(cuda.control.cuCtxCreate_v4, ctypes.c_void_p).value)
    assert pointers == [False, True]


def test_names_of_errors(cuda: Library) -> None:
    """[T]: an unknown code answers 1 and NULL."""
    text = ctypes.c_char_p(b"untouched")
    assert cuda("cuGetErrorName", 2, ctypes.byref(text)) == 0
    assert text.value == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert cuda("cuGetErrorName", 12345, ctypes.byref(text)) == 1
    assert ctypes.cast(text, ctypes.c_void_p).value is None
    assert cuda("cuGetErrorString", 801, ctypes.byref(text)) == 0
    assert text.value == b"operation not supported"


def test_work_needs_a_context_and_the_vmm_calls_do_not(load: Load) -> None:
    """[?], facts 1.2 "Context"; dma-buf without one: ucx#11645."""
    cuda = load("cuda-13")
    cuda.ok("cuInit", 0)
    base = cuda.reserve()
    cuda.commit(base)
    descriptor = ctypes.c_int()
    assert cuda("cuMemGetInfo_v2", buffer(), buffer()) == INVALID_CONTEXT
    assert cuda("cuMemsetD8_v2", base, 0, 1) == INVALID_CONTEXT
    assert cuda("cuMemcpyDtoH_v2", buffer(), base, 1) == INVALID_CONTEXT
    assert cuda("cuMemcpyDtoD_v2", base, base + 1, 1) == INVALID_CONTEXT
    assert cuda("cuCtxSynchronize") == INVALID_CONTEXT
    assert cuda("cuMemGetHandleForAddressRange", ctypes.byref(descriptor), base, MIB2, 1, 0) == INVALID_CONTEXT
    cuda.ok("cuMemUnmap", base, MIB2)


def test_a_thread_has_a_stack_of_contexts_of_its_own(cuda: Library) -> None:
    """[H] cuCtxPushCurrent, cuCtxPopCurrent, cuCtxSetCurrent, cuCtxGetCurrent."""
    primary = cuda.ok_get("cuCtxGetCurrent")
    seen = []

    def look() -> None:
        seen.append(cuda.get("cuCtxGetCurrent"))
        seen.append(cuda.get("cuCtxGetDevice"))
        seen.append((cuda("cuCtxPopCurrent_v2", None), 0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [(0, 0), (INVALID_CONTEXT, 0), (INVALID_CONTEXT, 0)]
    cuda.ok("cuCtxPushCurrent_v2", primary)
    assert cuda.control.context_depth() == 2
    assert cuda.get("cuCtxPopCurrent_v2") == (0, primary)
    cuda.ok("cuCtxSetCurrent", 0)
    assert cuda.control.context_depth() == 0


def test_the_primary_context_is_counted(cuda: Library) -> None:
    """[H] cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease: the last release resets it, one too many answers 201."""
    assert cuda.control.primary_retained(0) == 1
    same = cuda.ok_get("cuCtxGetCurrent")
    assert cuda.ok_get("cuDevicePrimaryCtxRetain", 0) == same
    cuda.ok("cuDevicePrimaryCtxRelease_v2", 0)
    assert cuda.synchronise() == 0
    cuda.ok("cuDevicePrimaryCtxRelease_v2", 0)
    assert cuda.synchronise() == DESTROYED
    assert cuda("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT


@pytest.mark.parametrize(
    "create",
    [
        pytest.param(lambda cuda, out: cuda("cuCtxCreate_v2", out, 0, 0), id="v2"),
        pytest.param(lambda cuda, out: cuda("cuCtxCreate_v4", out, None, 0, 0), id="v4"),
    ],
)
def test_a_private_context_works_but_is_remembered(cuda: Library, create: Callable[[Library, object], int]) -> None:
    """Requirement D7: never a private context."""
    context = ctypes.c_uint64()
    assert create(cuda, ctypes.byref(context)) == 0
    assert cuda.synchronise() == 0
    assert len(cuda.control.violations()) == 1
    cuda.ok("cuCtxDestroy_v2", context.value)
    assert cuda.control.context_depth() == 1


def test_a_child_after_a_fork_is_refused(cuda: Library) -> None:
    """Facts 4: real drivers do not work after a fork; requirement E4."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        codes = [
            cuda("cuCtxSynchronize"),
            cuda("cuInit", 0),
            cuda("cuMemRelease", 64),
            cuda("cuDriverGetVersion", buffer()),
        ]
        os.write(writing, bytes(codes))
        os._exit(0)
    os.waitpid(child, 0)
    assert list(os.read(reading, 16)) == [NOT_INITIALIZED, NOT_INITIALIZED, NOT_INITIALIZED, 0]
    os.close(reading)
    os.close(writing)
    assert cuda.synchronise() == 0


def test_a_child_of_a_parent_that_made_no_call_may_begin(load: Load) -> None:
    cuda = load("cuda-13")
    child = os.fork()
    if child == 0:
        os._exit(cuda("cuInit", 0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_several_devices(load: Load) -> None:
    """[H] cuDeviceGet."""
    cuda = load("cuda-13", devices=8)
    cuda.ok("cuInit", 0)
    assert cuda.get("cuDeviceGetCount") == (0, 8)
    assert cuda.get("cuDeviceGet", 7) == (0, 7)
    assert cuda.get("cuDeviceGet", 8)[0] == 101
    name = buffer()
    cuda.ok("cuDeviceGetName", name, 64, 3)
    assert name.value == b"Emulated CUDA device 3"
    uuids = set()
    for device in range(8):
        uuid = buffer(16)
        cuda.ok("cuDeviceGetUuid_v2", uuid, device)
        uuids.add(uuid.raw)
    assert len(uuids) == 8
