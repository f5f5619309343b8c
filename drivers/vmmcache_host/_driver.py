"""Memory files (memfd) for allocations, inaccessible private mappings for reservations, MAP_FIXED to join them.

The operating system forgives what no GPU does: mapping over a mapping, unmapping half of one, addresses that were never
reserved. This driver does not, so that code which runs on it has kept the rules that the vendors enforce.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NoReturn

from vmmcache import Allocation, ConfigError, DriverUnavailable, Granularity, MemoryInfo, OutOfDeviceMemory, VmmDriver
from vmmcache.driver import HandleType
from vmmcache.fds import FD_CURE, room_for
from vmmcache.units import format_bytes
from vmmcache_host import _libc
from vmmcache_host._budget import VARIABLE, Budget, read_budget

__all__ = ["HostDriver", "open_host"]

_SHAREABLE: Final[frozenset[HandleType]] = frozenset({"posix_fd"})


@dataclass(slots=True)
class _File:
    """A memory file: alive while its descriptor is open or it is mapped somewhere."""

    nbytes: int
    charge: int
    """Bytes that count against the budget: none where another process paid."""
    fd: int | None
    mapped: int = 0


@dataclass(slots=True)
class _Mapped:
    nbytes: int
    handle: int
    granted: bool = False


def open_host(index: int) -> HostDriver:
    """Open the host's memory; there is one, with index 0."""
    if index:
        raise DriverUnavailable(f"there is no host device {index}", cure='The host is one device: "host"', driver="host")
    return HostDriver()


class HostDriver(VmmDriver):
    """Virtual memory of a Linux host (D15)."""

    name: ClassVar[str] = "host"
    device_type: ClassVar[str] = "cpu"
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]] = "DRAM"
    fresh_is_zero: ClassVar[bool] = True  # a new memory file is a hole, and holes read as zero
    fds_per_allocation: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        # Re-entrant, because a view that dies in the middle of a call may give its region back from here.
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._reserved: list[tuple[int, int]] = []  # (address, nbytes), sorted
        self._starts: list[int] = []  # addresses of what is mapped, sorted
        self._mapped: dict[int, _Mapped] = {}
        self._used = 0
        self._open_fds = 0
        self._at_start = read_budget()

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
        """Free is what may still be committed: less where neighbours took memory since the driver was opened."""
        now = read_budget()
        return MemoryInfo(free=max(0, min(self._limit(now) - self._used, now.free)), total=now.total, source=now.source)

    def _limit(self, now: Budget) -> int:
        return now.total if now.source == "configured" else self._at_start.free

    # Addresses ------------------------------------------------------------------------------------------------------

    def _reserve(self, nbytes: int) -> int:
        # The system aligns to a page only: ask for a granule more and give back both ends.
        with self._lock:
            start = _libc.map_nothing(nbytes + self.granule)
            end = start + nbytes + self.granule
            address = -(-start // self.granule) * self.granule
            for lower, upper in ((start, address), (address + nbytes, end)):
                if lower < upper:
                    _libc.unmap(lower, upper - lower)
            self._reserved.insert(bisect_left(self._reserved, (address, nbytes)), (address, nbytes))
        return address

    def _free(self, address: int, nbytes: int) -> None:
        with self._lock:
            place = bisect_left(self._reserved, (address, nbytes))
            if self._reserved[place : place + 1] != [(address, nbytes)]:
                self._refuse("munmap", errno.EINVAL, f"{nbytes} bytes at {address:#x}: no such reservation")
            if bisect_left(self._starts, address) != bisect_left(self._starts, address + nbytes):
                self._refuse("munmap", errno.EBUSY, f"the reservation at {address:#x}: memory is still mapped in it")
            _libc.unmap(address, nbytes)
            del self._reserved[place]

    # Memory ---------------------------------------------------------------------------------------------------------

    def _create(self, nbytes: int) -> Allocation:
        with self._lock:
            limit = self._at_start.free if VARIABLE not in os.environ else read_budget().total
            if self._used + nbytes > limit:
                self._out_of_memory("memfd_create", nbytes, limit, errno.ENOMEM)
            missing = room_for(self._open_fds + 1)
            try:
                fd = os.memfd_create("vmmcache", os.MFD_CLOEXEC)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    what = f"{nbytes} bytes: this process holds {self._open_fds} for allocations and {missing} more are needed"
                    raise _libc.check_errno("memfd_create", error.errno, what, cure=FD_CURE) from error
                raise _libc.check_errno("memfd_create", error.errno or 0, f"{nbytes} bytes") from error
            try:
                os.ftruncate(fd, nbytes)
            except OSError as error:
                os.close(fd)
                raise _libc.check_errno("ftruncate", error.errno or 0, f"{nbytes} bytes") from error
            return self._adopt(fd, nbytes, charge=nbytes)

    def _release(self, handle: int) -> None:
        with self._lock:
            file = self._files.get(handle)
            if file is None or file.fd is None:
                self._refuse("close", errno.EBADF, f"allocation {handle}: unknown, or released before")
            os.close(file.fd)
            file.fd = None
            self._open_fds -= 1
            self._settle(handle, file)

    def _adopt(self, fd: int, nbytes: int, *, charge: int) -> Allocation:
        handle = self._new_allocation_id()
        self._files[handle] = _File(nbytes, charge, fd)
        self._used += charge
        self._open_fds += 1
        # rdma_capable: page pinning works on all of a host's memory, but only a verbs library could say so.
        return Allocation(handle, nbytes, id=handle, rdma_capable=None, handle_types=_SHAREABLE)  # type: ignore[arg-type]  # Bytes

    def _settle(self, handle: int, file: _File) -> None:
        if file.fd is None and not file.mapped:
            self._used -= file.charge
            del self._files[handle]

    # Addresses and memory together ----------------------------------------------------------------------------------

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        with self._lock:
            file = self._files.get(handle)
            if file is None or file.fd is None:
                self._refuse("mmap", errno.EBADF, f"allocation {handle}: unknown, or released before")
            if file.nbytes != nbytes:
                self._refuse("mmap", errno.EINVAL, f"{nbytes} bytes of an allocation of {file.nbytes}: only the whole can be mapped")
            place = bisect_right(self._reserved, (address, float("inf"))) - 1
            if place < 0 or sum(self._reserved[place]) < address + nbytes:
                self._refuse("mmap", errno.EFAULT, f"{nbytes} bytes at {address:#x}: not reserved")
            place = bisect_left(self._starts, address + nbytes)
            if place and self._end(self._starts[place - 1]) > address:
                self._refuse("mmap", errno.EEXIST, f"{nbytes} bytes at {address:#x}: something is mapped there")
            _libc.map_file(file.fd, nbytes, at=address)
            self._starts.insert(place, address)
            self._mapped[address] = _Mapped(nbytes, handle)
            file.mapped += 1

    def _grant(self, address: int, nbytes: int) -> None:
        with self._lock:
            run = self._run("mprotect", address, nbytes)
            if run[0] != address or self._end(run[-1]) != address + nbytes:
                self._refuse("mprotect", errno.EINVAL, f"{nbytes} bytes at {address:#x}: not a run of whole mappings")
            _libc.protect(address, nbytes, _libc.READ_WRITE)
            for start in run:
                self._mapped[start].granted = True

    def _unmap(self, address: int, nbytes: int) -> None:
        with self._lock:
            mapped = self._mapped.get(address)
            if mapped is None or mapped.nbytes != nbytes:
                self._refuse("mmap", errno.EINVAL, f"unmapping {nbytes} bytes at {address:#x}: not exactly one mapping")
            _libc.map_nothing(nbytes, at=address)
            del self._mapped[address]
            del self._starts[bisect_left(self._starts, address)]
            file = self._files[mapped.handle]
            file.mapped -= 1
            self._settle(mapped.handle, file)

    # Contents -------------------------------------------------------------------------------------------------------

    def _zero(self, address: int, nbytes: int) -> None:
        self._check_access("memset", address, nbytes)
        ctypes.memset(address, 0, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._check_access("memmove", target, nbytes)
        self._check_access("memmove", source, nbytes)
        ctypes.memmove(target, source, nbytes)

    def _read(self, address: int, nbytes: int) -> bytearray:
        self._check_access("memmove", address, nbytes)
        data = bytearray(nbytes)
        ctypes.memmove((ctypes.c_char * nbytes).from_buffer(data), address, nbytes)
        return data

    def _write(self, address: int, data: bytes | bytearray) -> None:
        self._check_access("memmove", address, len(data))
        ctypes.memmove(address, bytes(data) if isinstance(data, bytes) else (ctypes.c_char * len(data)).from_buffer(data), len(data))

    def _synchronise(self) -> None:
        """Nothing runs behind our back: host code has done what it did."""

    def _check_access(self, call: str, address: int, nbytes: int) -> None:
        with self._lock:
            for start in self._run(call, address, nbytes):
                if not self._mapped[start].granted:
                    self._refuse(call, errno.EACCES, f"{nbytes} bytes at {address:#x}: mapped without access")

    # Sharing --------------------------------------------------------------------------------------------------------

    def _export(self, handle: int, kind: HandleType) -> int:
        with self._lock:
            file = self._files.get(handle)
            if file is None or file.fd is None:
                self._refuse("dup", errno.EBADF, f"allocation {handle}: unknown, or released before")
            try:
                return os.dup(file.fd)
            except OSError as error:
                raise _libc.check_errno("dup", error.errno or 0, f"allocation {handle}", cure=FD_CURE) from error

    def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        if kind != "posix_fd" or not isinstance(shared, int):
            raise self._cannot("import_handle", f"the host imports file descriptors only, not {kind!r}")
        try:
            size = os.fstat(shared).st_size
            if size != nbytes:
                raise ConfigError("nbytes", nbytes, f"the descriptor holds {size} bytes")
            fd = os.dup(shared)
        except OSError as error:
            raise _libc.check_errno("dup", error.errno or 0, f"descriptor {shared}") from error
        with self._lock:
            return self._adopt(fd, nbytes, charge=0)

    def _dmabuf(self, address: int, nbytes: int) -> int:
        raise self._cannot("export_dmabuf", "ordinary host memory has no dma-buf")

    # ----------------------------------------------------------------------------------------------------------------

    def _end(self, start: int) -> int:
        return start + self._mapped[start].nbytes

    def _run(self, call: str, address: int, nbytes: int) -> list[int]:
        """Starts of the mappings that cover a range; refused where there is a hole."""
        first = max(0, bisect_right(self._starts, address) - 1)
        run = self._starts[first : bisect_left(self._starts, address + nbytes)]
        reached = address
        for start in run:
            if start > reached:
                break
            reached = self._end(start)
        if reached < address + nbytes:
            self._refuse(call, errno.EFAULT, f"{nbytes} bytes at {address:#x}: not all of it is mapped")
        return run

    def _refuse(self, call: str, code: int, what: str) -> NoReturn:
        raise _libc.check_errno(call, code, what)

    def _out_of_memory(self, call: str, nbytes: int, limit: int, code: int) -> NoReturn:
        free = max(0, limit - self._used)
        raise OutOfDeviceMemory(
            f"host: {call} of {format_bytes(nbytes)}: {format_bytes(free)} of {format_bytes(limit)} are free. "
            f"Commit less, or set {VARIABLE} to a larger size",
            driver="host",
            call=call,
            requested=nbytes,
            free=free,
            code=code,
            name=errno.errorcode[code],
        )


