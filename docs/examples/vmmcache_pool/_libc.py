"""The one place that calls the system: every call is checked, and fails as a DriverError with the call's own name."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Final

from vmmcache import DriverError

__all__ = ["allow", "blank", "map_part", "take", "unmap"]

# MAP_FIXED and MAP_NORESERVE of Linux (asm-generic/mman-common.h), which Python's mmap module does not name.
_FIXED: Final = 0x10
_NORESERVE: Final = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def take(nbytes: int) -> int:
    """A memory file whose pages are all there: its descriptor."""
    # The system promises more than it has, and then ends processes at random.
    if nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2:
        raise _refusal("posix_fallocate", errno.ENOMEM, f"{nbytes} bytes, more than half of this machine's memory")
    fd = os.memfd_create("vmmcache-pool")
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        raise _refusal("posix_fallocate", error.errno or 0, f"{nbytes} bytes") from error
    return fd


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
        raise _refusal("mprotect", ctypes.get_errno(), f"{nbytes} bytes at {address:#x}")


def unmap(address: int, nbytes: int) -> None:
    """Give addresses back."""
    if nbytes and _libc.munmap(address, nbytes):
        raise _refusal("munmap", ctypes.get_errno(), f"{nbytes} bytes at {address:#x}")


def _map(at: int | None, nbytes: int, flags: int, fd: int, offset: int) -> int:
    address = _libc.mmap(at, nbytes, 0, flags, fd, offset)
    if address == ctypes.c_void_p(-1).value:
        raise _refusal("mmap", ctypes.get_errno(), f"{nbytes} bytes")
    return int(address)


def _refusal(call: str, code: int, what: str) -> DriverError:
    name = errno.errorcode.get(code, f"errno {code}")
    return DriverError(f"pool: {call} of {what}: {name}", driver="pool", call=call, code=code, name=name)
