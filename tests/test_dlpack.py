"""DLPack capsules, field by field, as a library that takes them sees them (DLPack 0.8, dlpack.h)."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.utils.dlpack

from tests.helpers import PATIENCE_S, GpuLikeDriver, accounts
from vmmcache.memory.dlpack import byte_capsule
from vmmcache.memory.lifetime import Lifetime
from vmmcache.memory.region import Region

python = ctypes.pythonapi
is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", python))
pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", python))
rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", python))
USED = b"used_dltensor"


class Taken(ctypes.Structure):
    """DLManagedTensor, written out flat and a second time, with the padding that the C compiler puts in."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


def take(capsule: object) -> Taken:
    """What a consumer does: rename the capsule, and call the deleter when it is done."""
    taken = Taken.from_address(pointer(capsule, b"dltensor"))
    rename(capsule, USED)
    return taken


@pytest.fixture
def memory() -> Iterator[int]:
    buffer = ctypes.create_string_buffer(64)
    yield ctypes.addressof(buffer)
    del buffer


@pytest.fixture
def gone() -> list[str]:
    """Grows by one entry each time a capsule's memory is let go."""
    return []


@pytest.fixture
def let_go(gone: list[str]) -> Callable[[], object]:
    return lambda: gone.append(threading.current_thread().name)


def test_a_capsule_of_any_device_type_is_true_in_every_field() -> None:
    """T3: the device is the driver's word, here CUDA (2), number 3; nobody else knows it (D2)."""
    driver = GpuLikeDriver()
    region = Region(driver, 8 * driver.granule, guard=lambda ranges: None)
    lifetime = Lifetime(region, leased=lambda: 0)
    capsule = lifetime.capsule(4096, 12345)
    assert is_valid(capsule, b"dltensor")
    taken = take(capsule)
    assert taken.data == region.base + 4096
    assert (taken.device_type, taken.device_id) == (2, 3)
    assert (taken.code, taken.bits, taken.lanes) == (1, 8, 1)
    assert (taken.ndim, taken.shape[0], taken.strides[0], taken.byte_offset) == (1, 12345, 1, 0)
    assert taken.manager_ctx is None
    assert ctypes.sizeof(Taken) == 64
    assert lifetime.views == 1
    taken.deleter(ctypes.addressof(taken))
    assert lifetime.views == 0
    region.close()
    assert accounts(driver).reservations == 0


@pytest.mark.parametrize("nbytes", [0, 1, (1 << 32) + 1, (1 << 46) - 1])
@pytest.mark.parametrize("device", [(1, 0), (2, 7), (10, 1)])
def test_sizes_and_devices_are_handed_on_whole(
    memory: int, let_go: Callable[[], object], nbytes: int, device: tuple[int, int]
) -> None:
    taken = take(byte_capsule(memory, nbytes, device, let_go))
    assert (taken.shape[0], taken.device_type, taken.device_id) == (nbytes, *device)
    taken.deleter(ctypes.addressof(taken))


def test_a_capsule_that_nobody_took_lets_go_when_it_dies(
    memory: int, gone: list[str], let_go: Callable[[], object]
) -> None:
    capsule = byte_capsule(memory, 64, (1, 0), let_go)
    assert gone == []
    del capsule
    assert len(gone) == 1


def test_a_capsule_that_was_taken_lets_go_once_when_the_taker_does(
    memory: int, gone: list[str], let_go: Callable[[], object]
) -> None:
    capsule = byte_capsule(memory, 64, (1, 0), let_go)
    taken = take(capsule)
    address, deleter = ctypes.addressof(taken), taken.deleter
    del capsule, taken
    gc.collect()
    assert gone == []
    deleter(address)
    assert len(gone) == 1


def test_the_taker_may_let_go_in_a_thread_that_python_does_not_know(
    memory: int, gone: list[str], let_go: Callable[[], object]
) -> None:
    capsule = byte_capsule(memory, 64, (1, 0), let_go)
    taken = take(capsule)
    address = ctypes.addressof(taken)
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    # The deleter is a C function of one pointer, and so is what pthread_create runs; its result is not looked at.
    assert libc.pthread_create(ctypes.byref(thread), None, taken.deleter, ctypes.c_void_p(address)) == 0
    assert libc.pthread_join(thread, None) == 0
    assert len(gone) == 1
    assert gone[0].startswith("Dummy")


def test_a_tensor_library_takes_the_capsule_and_lets_go_with_the_last_tensor(
    memory: int, gone: list[str], let_go: Callable[[], object]
) -> None:
    tensor = torch.utils.dlpack.from_dlpack(byte_capsule(memory, 64, (1, 0), let_go))
    assert (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) == (memory, torch.uint8, (64,), (1,))
    slices = [tensor[i:] for i in range(5)]
    del tensor
    while slices:
        assert gone == []
        slices.pop()
    assert len(gone) == 1


def test_many_capsules_let_go_each_of_its_own(memory: int) -> None:
    gone: list[int] = []

    def remember(number: int) -> Callable[[], object]:
        return lambda: gone.append(number)

    tensors = [
        torch.utils.dlpack.from_dlpack(byte_capsule(memory, 64, (1, 0), remember(number))) for number in range(1000)
    ]

    def drop(part: list[torch.Tensor]) -> None:
        while part:
            part.pop()

    parts = [tensors[each::4] for each in range(4)]
    tensors.clear()
    threads = [threading.Thread(target=drop, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(gone) == list(range(1000))
