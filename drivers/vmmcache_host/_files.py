"""The host's allocations: memory files, what they count against the budget, and their descriptors."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from typing import Final, NoReturn

from vmmcache import ConfigError, OutOfDeviceMemory
from vmmcache.fds import FD_CURE, room_for
from vmmcache.host_memory import VARIABLE, HostMemory, read_host_memory
from vmmcache.units import format_bytes
from vmmcache_host._libc import refusal

__all__ = ["MemoryFiles"]


_CONFIGURED: Final = "configured"
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""Whoever maps a file of another process dies of SIGBUS where that process cuts it: nobody can."""


def _is_sealed(fd: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK != 0
    except OSError as error:
        # Pipes, sockets, devices and files on a disk have no seals.
        if error.errno == errno.EINVAL:
            return False
        raise


@dataclass(slots=True)
class _File:
    """Alive while its descriptor is open or it is mapped somewhere."""

    nbytes: int
    charge: int
    """Bytes that count against the budget: none where another process paid."""
    fd: int | None
    mapped: int = 0


class MemoryFiles:
    """Memory files by handle. Callers hold the driver's lock."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._mapped: dict[int, int] = {}  # address -> handle
        self._open = 0
        self._at_start = read_host_memory()
        self.used = 0
        """Bytes that count against the budget."""

    def budget(self) -> HostMemory:
        """What is free now: less where neighbours took memory since the driver was opened."""
        now = read_host_memory()
        limit = now.total if now.source == _CONFIGURED else self._limit()
        return HostMemory(now.total, max(0, min(limit - self.used, now.free)), now.source)

    def create(self, handle: int, nbytes: int) -> None:
        """A new file of zeros."""
        # Memory that is not touched yet is in none of the kernel's numbers: ours decide, and cost no look at the
        # kernel's.
        limit = read_host_memory().total if os.environ.get(VARIABLE) else self._limit()
        if self.used + nbytes > limit:
            self._out_of_memory(nbytes, limit)
        missing = room_for(self._open + 1)
        try:
            fd = os.memfd_create("vmmcache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            held = f"{nbytes} bytes; {self._open} descriptors are held for allocations and {missing} are missing"
            cure = FD_CURE if error.errno in (errno.EMFILE, errno.ENFILE) else None
            raise refusal("memfd_create", error.errno, held, cure=cure) from error
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            os.close(fd)
            raise refusal("ftruncate", error.errno, f"{nbytes} bytes") from error
        self._enter(handle, _File(nbytes, nbytes, fd))

    def adopt(self, handle: int, shared: int, nbytes: int) -> None:
        """A file that another process made and shares."""
        try:
            if not _is_sealed(shared):
                raise ConfigError("shared", shared, "the descriptor is no memory file that keeps its size")
            size = os.fstat(shared).st_size
            if size != nbytes:
                raise ConfigError("nbytes", nbytes, f"the descriptor holds {size} bytes")
            fd = os.dup(shared)
        except OSError as error:
            raise refusal("dup", error.errno, f"descriptor {shared}", cure=FD_CURE) from error
        self._enter(handle, _File(nbytes, 0, fd))

    def release(self, handle: int) -> None:
        """Close the descriptor; the memory stays while it is mapped."""
        os.close(self.descriptor(handle))
        file = self._files[handle]
        file.fd = None
        self._open -= 1
        self._settle(handle, file)

    def share(self, handle: int) -> int:
        """A descriptor for somebody else, who closes it."""
        try:
            return os.dup(self.descriptor(handle))
        except OSError as error:
            raise refusal("dup", error.errno, f"allocation {handle}", cure=FD_CURE) from error

    def descriptor(self, handle: int) -> int:
        """The descriptor of a live allocation."""
        fd = self._files[handle].fd
        assert fd is not None  # the driver's own table lets no released allocation through
        return fd

    def map(self, handle: int, address: int) -> None:
        """Note that a file is mapped."""
        self._mapped[address] = handle
        self._files[handle].mapped += 1

    def unmap(self, address: int) -> None:
        """Note that what was mapped is not any more."""
        handle = self._mapped.pop(address)
        file = self._files[handle]
        file.mapped -= 1
        self._settle(handle, file)

    def _limit(self) -> int:
        """Bytes that were free at the start, where nobody has configured how many may be used."""
        if self._at_start.source == _CONFIGURED:
            # Somebody had, and has not any more: what was configured says nothing of the machine.
            self._at_start = read_host_memory()
        return self._at_start.free

    def _enter(self, handle: int, file: _File) -> None:
        self._files[handle] = file
        self.used += file.charge
        self._open += 1

    def _settle(self, handle: int, file: _File) -> None:
        if file.fd is None and not file.mapped:
            self.used -= file.charge
            del self._files[handle]

    def _out_of_memory(self, nbytes: int, limit: int) -> NoReturn:
        free = max(0, limit - self.used)
        raise OutOfDeviceMemory(
            f"host: memfd_create of {format_bytes(nbytes)}: {format_bytes(free)} of {format_bytes(limit)} are free",
            cure=f"Commit less, or set {VARIABLE} to a larger size",
            driver="host",
            call="memfd_create",
            requested=nbytes,
            free=free,
            code=errno.ENOMEM,
            name="ENOMEM",
        )
