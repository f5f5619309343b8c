"""Memory files (memfd) for allocations, inaccessible private mappings for reservations, MAP_FIXED to join them."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from typing import ClassVar, Final, Literal

from vmmcache import Allocation, DriverError, DriverUnavailable, Granularity, MemoryInfo, VmmDriver
from vmmcache.driver import HandleType
from vmmcache.places import Wrong
from vmmcache.units import Bytes, align_up
from vmmcache_host import _libc
from vmmcache_host._files import MemoryFiles

__all__ = ["HostDriver", "open_host"]

# What the call and its status would be, if the operating system were as strict as a GPU.
_CALLS: Final = {
    "free": "munmap",
    "map": "mmap",
    "unmap": "mmap",
    "grant": "mprotect",
    "zero": "memset",
    "copy": "memmove",
    "read": "memmove",
    "write": "memmove",
    "release": "close",
    "export_handle": "dup",
}
_CODES: Final = {
    Wrong.NO_SUCH_RESERVATION: errno.EINVAL,
    Wrong.STILL_MAPPED: errno.EBUSY,
    Wrong.NOT_RESERVED: errno.EFAULT,
    Wrong.OCCUPIED: errno.EEXIST,
    Wrong.NOT_ONE_MAPPING: errno.EINVAL,
    Wrong.NOT_A_RUN: errno.EINVAL,
    Wrong.NOT_MAPPED: errno.EFAULT,
    Wrong.NO_ACCESS: errno.EACCES,
    Wrong.READ_ONLY: errno.EACCES,
    Wrong.NO_SUCH_ALLOCATION: errno.EBADF,
}
_SHAREABLE: Final[frozenset[HandleType]] = frozenset({"posix_fd"})


def open_host(index: int) -> HostDriver:
    """Open the host's memory; there is one, with index 0."""
    if index:
        reason = f"there is no host device {index}"
        raise DriverUnavailable(reason, cure='The host is one device: write "host"', driver="host")
    return HostDriver()


class HostDriver(VmmDriver):
    """Virtual memory of a Linux host (D15)."""

    name: ClassVar[str] = "host"
    device_type: ClassVar[str] = "cpu"
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]] = "DRAM"
    fresh_is_zero: ClassVar[bool] = True  # a new memory file is a hole, and holes read as zero (memfd_create(2))
    fds_per_allocation = 1

    def __init__(self) -> None:
        super().__init__()
        # Re-entrant, because a view that dies in the middle of a call may give its region back from here.
        self._lock = threading.RLock()
        self._files = MemoryFiles()

    @property
    def device(self) -> str:
        return "host"

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return 1, 0

    @property
    def torch_device(self) -> str:
        return "cpu"

    def granularity(self) -> Granularity:
        page = os.sysconf("SC_PAGE_SIZE")
        return Granularity(minimum=page, recommended=page)

    def memory_info(self) -> MemoryInfo:
        with self._lock:
            now = self._files.budget()
        return MemoryInfo(free=now.free, total=now.total, source=now.source)

    # Addresses ------------------------------------------------------------------------------------------------------

    def _reserve(self, nbytes: int) -> int:
        # The system aligns to a page only: ask for a granule more and give back both ends.
        start = _libc.map_nothing(nbytes + self.granule)
        address = align_up(start, self.granule)
        for lower, upper in ((start, address), (address + nbytes, start + nbytes + self.granule)):
            if lower < upper:
                _libc.unmap(lower, upper - lower)
        return address

    def _free(self, address: int, nbytes: int) -> None:
        _libc.unmap(address, nbytes)

    # Memory ---------------------------------------------------------------------------------------------------------

    def _create(self, nbytes: int) -> Allocation:
        with self._lock:
            handle = self._new_allocation_id()
            self._files.create(handle, nbytes)
        return self._allocation(handle, nbytes)

    def _release(self, handle: int) -> None:
        with self._lock:
            self._files.release(handle)

    def _allocation(self, handle: int, nbytes: int) -> Allocation:
        # rdma_capable is unknown: a NIC can pin any host memory; whether there is one, only a verbs library can say.
        return Allocation(handle, Bytes(nbytes), id=handle, rdma_capable=None, handle_types=_SHAREABLE)

    # Addresses and memory together ----------------------------------------------------------------------------------

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        with self._lock:
            _libc.map_file(self._files.descriptor(handle), nbytes, at=address)
            self._files.map(handle, address)

    def _grant(self, address: int, nbytes: int) -> None:
        _libc.protect(address, nbytes, _libc.READ_WRITE)

    def _grant_reading(self, address: int, nbytes: int) -> None:
        _libc.protect(address, nbytes, _libc.READ)

    def _unmap(self, address: int, nbytes: int) -> None:
        with self._lock:
            _libc.map_nothing(nbytes, at=address)
            self._files.unmap(address)

    # Contents -------------------------------------------------------------------------------------------------------

    def _zero(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def _read(self, address: int, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        ctypes.memmove((ctypes.c_char * nbytes).from_buffer(data), address, nbytes)
        return data

    def _write(self, address: int, data: bytes | bytearray) -> None:
        source = data if isinstance(data, bytes) else (ctypes.c_char * len(data)).from_buffer(data)
        ctypes.memmove(address, source, len(data))

    def _synchronise(self) -> None:
        """Nothing runs behind our back: host code has done what it did."""

    # Sharing --------------------------------------------------------------------------------------------------------

    def _export(self, handle: int, kind: HandleType) -> int:
        with self._lock:
            return self._files.share(handle)

    def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        if kind != "posix_fd" or not isinstance(shared, int):
            raise self._cannot("import_handle", f"the host imports file descriptors, not {kind!r}")
        with self._lock:
            handle = self._new_allocation_id()
            self._files.adopt(handle, shared, nbytes)
        return self._allocation(handle, nbytes)

    def _dmabuf(self, address: int, nbytes: int) -> int:
        raise self._cannot("export_dmabuf", "ordinary host memory has no dma-buf")

    def _refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        return _libc.refusal(_CALLS.get(verb, verb), _CODES[wrong], f"{what}, {wrong.value}")
