"""The one edge to libc: every call checked, every failure a DriverError with the call's own name.

mmap is called through libc, never as a raw system call: communication libraries (UCX) watch for unmaps by hooking
libc's symbol, and what bypasses it leaves them with registrations of memory that is gone.
"""

from __future__ import annotations

import ctypes
import errno
import mmap as flags
import os
from typing import Final

from vmmcache import DriverError

__all__ = ["READ", "READ_WRITE", "map_file", "map_nothing", "protect", "refusal", "unmap"]

READ: Final = flags.PROT_READ
READ_WRITE: Final = flags.PROT_READ | flags.PROT_WRITE

# Not named by Python's mmap module. The same on x86-64 and AArch64 (asm-generic/mman.h and mman-common.h of Linux).
_FIXED: Final = 0x10
_NORESERVE: Final = 0x4000
_NO_ACCESS: Final = 0
_FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_CURES: Final = {
    errno.ENOMEM: "Address space (`ulimit -v`) or the number of mappings (sysctl vm.max_map_count) is used up",
    errno.EPERM: "A sandbox forbids the call (seccomp); allow it for this process",
    errno.ENOSYS: "This kernel, or a sandbox, lacks the call; Linux 3.17 or newer has it",
}


def refusal(call: str, code: int | None, what: str, *, cure: str | None = None) -> DriverError:
    """The DriverError for a `call` on `what` that failed with errno `code`."""
    code = code or 0
    name = errno.errorcode.get(code, f"errno {code}")
    reason = f"host: {call} of {what}: {name} ({os.strerror(code)})"
    return DriverError(reason, driver="host", call=call, code=code, name=name, cure=cure or _CURES.get(code))


def map_nothing(nbytes: int, *, at: int | None = None) -> int:
    """Addresses that fault when touched: new ones, or in place of whatever is mapped `at`."""
    kind = flags.MAP_PRIVATE | flags.MAP_ANONYMOUS | _NORESERVE | (0 if at is None else _FIXED)
    return _map(at, nbytes, kind, -1)


def map_file(fd: int, nbytes: int, *, at: int) -> None:
    """The whole of a memory file, in place of the addresses `at`, without access."""
    _map(at, nbytes, flags.MAP_SHARED | _FIXED, fd)


def protect(address: int, nbytes: int, access: int) -> None:
    """Set what may be done with whole pages."""
    if _libc.mprotect(address, nbytes, access):
        raise refusal("mprotect", ctypes.get_errno(), f"{nbytes} bytes at {address:#x}")


def unmap(address: int, nbytes: int) -> None:
    """Give addresses back to the system."""
    if _libc.munmap(address, nbytes):
        raise refusal("munmap", ctypes.get_errno(), f"{nbytes} bytes at {address:#x}")


def _map(at: int | None, nbytes: int, kind: int, fd: int) -> int:
    address = _libc.mmap(at, nbytes, _NO_ACCESS, kind, fd, 0)
    if address == _FAILED:
        where = "any address" if at is None else f"{at:#x}"
        raise refusal("mmap", ctypes.get_errno(), f"{nbytes} bytes at {where}")
    return int(address)
