"""The one place that calls libc: every call is checked, and fails as a DriverError with the call's own name."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Final

from vmmcache import DriverError

__all__ = ["allow", "blank", "map_part", "refusal", "unmap"]

# MAP_FIXED and MAP_NORESERVE of Linux (asm-generic/mman-common.h), which Python's mmap module does not name.
_FIXED: Final = 0x10
_NORESERVE: Final = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def refusal(call: str, code: int, address: int, nbytes: int, why: str) -> DriverError:
    """The error for a refused call: who, what, and which numbers."""
    name = errno.errorcode.get(code, f"errno {code}")
    message = f"pool: {call} of {nbytes} bytes at {address:#x}: {name}, {why}"
    return DriverError(message, driver="pool", call=call, code=code, name=name)


def blank(nbytes: int, at: int | None = None) -> int:
    """Addresses that fault when they are touched: new ones, or in place of what is mapped `at`."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | (0 if at is None else _FIXED)
    return _map(at, nbytes, flags, -1, 0)


def map_part(fd: int, offset: int, nbytes: int, *, at: int) -> None:
    """A part of a file in place of the addresses `at`, without access."""
    _map(at, nbytes, mmap.MAP_SHARED | _FIXED, fd, offset)


def allow(address: int, nbytes: int) -> None:
    """Make pages readable and writable."""
    if _libc.mprotect(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE):
        raise _failed("mprotect", address, nbytes)


def unmap(address: int, nbytes: int) -> None:
    """Give addresses back."""
    if nbytes and _libc.munmap(address, nbytes):
        raise _failed("munmap", address, nbytes)


def _map(at: int | None, nbytes: int, flags: int, fd: int, offset: int) -> int:
    address = _libc.mmap(at, nbytes, 0, flags, fd, offset)
    if address == ctypes.c_void_p(-1).value:
        raise _failed("mmap", at or 0, nbytes)
    return int(address)


def _failed(call: str, address: int, nbytes: int) -> DriverError:
    code = ctypes.get_errno()
    return refusal(call, code, address, nbytes, os.strerror(code))
