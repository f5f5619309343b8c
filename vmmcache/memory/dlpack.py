"""DLPack capsules over bare addresses, for any device type.

The capsule's deleter is how a tensor library says that the last of its views is gone. Two things are done so that
this is safe also when the interpreter shuts down: the structure that the library holds is never freed by the
garbage collector (it is allocated raw, and freed by the deleter alone), and `atexit` takes the deleter out of
every structure that is still held, because what dies after the interpreter has no Python left to call.

Layout of the structures: DLPack 0.8, ``dlpack.h``.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from typing import Final

__all__ = ["DLManagedTensor", "byte_capsule"]

_UINT: Final = 1  # kDLUInt


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    """What a ``dltensor`` capsule points to."""

    _fields_ = (("dl_tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_python = ctypes.pythonapi
_python.PyMem_RawMalloc.restype = ctypes.c_void_p
_python.PyMem_RawMalloc.argtypes = (ctypes.c_size_t,)
_python.PyMem_RawFree.restype = None
_python.PyMem_RawFree.argtypes = (ctypes.c_void_p,)
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# Bare pointers, not py_object: the destructor runs when the capsule's last reference is gone already.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))

_NAME: Final = b"dltensor"
_SHAPE_AT: Final = ctypes.sizeof(DLManagedTensor)
_held: dict[int, Callable[[], object]] = {}
"""Structures that a capsule or a tensor library still holds, by address, with what to call when it lets go."""


def _delete(address: int) -> None:
    on_delete = _held.pop(address, None)
    _python.PyMem_RawFree(address)
    if on_delete is not None:
        on_delete()


def _destroy(capsule: int) -> None:
    # A library that takes the tensor renames the capsule; one that still has its own name was never taken.
    if _is_valid(capsule, _NAME):
        _delete(_get_pointer(capsule, _NAME))


# Called from C: the one with the GIL released, by whoever frees a tensor; the other by Python itself, holding it.
_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


@atexit.register
def _disarm() -> None:
    for address in tuple(_held):
        DLManagedTensor.from_address(address).deleter = None


def byte_capsule(address: int, nbytes: int, device: tuple[int, int], on_delete: Callable[[], object]) -> object:
    """A capsule of `nbytes` unsigned bytes at `address`, in one dimension.

    Parameters
    ----------
    device : tuple of int
        DLPack device type and device number.
    on_delete : callable
        Called once, from any thread, when the capsule or the tensor made of it is gone; not after interpreter exit.

    Returns
    -------
    object
        A ``PyCapsule`` named ``"dltensor"``.
    """
    block = _python.PyMem_RawMalloc(_SHAPE_AT + 16)
    if block is None:
        raise MemoryError
    shape = (ctypes.c_int64 * 2).from_address(block + _SHAPE_AT)
    shape[0], shape[1] = nbytes, 1
    managed = DLManagedTensor.from_address(block)
    managed.dl_tensor.data = address
    managed.dl_tensor.device.device_type, managed.dl_tensor.device.device_id = device
    managed.dl_tensor.ndim = 1
    managed.dl_tensor.dtype.code, managed.dl_tensor.dtype.bits, managed.dl_tensor.dtype.lanes = _UINT, 8, 1
    managed.dl_tensor.shape = block + _SHAPE_AT
    managed.dl_tensor.strides = block + _SHAPE_AT + 8
    managed.dl_tensor.byte_offset = 0
    managed.manager_ctx = None
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p).value
    _held[block] = on_delete
    return _python.PyCapsule_New(block, _NAME, ctypes.cast(_destructor, ctypes.c_void_p).value)
