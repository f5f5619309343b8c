"""Memory of a fixed size: one memory file, all of it taken at the start and handed out in units.

Three things are as on a GPU, and unlike the host driver: the amount of memory is fixed, what comes out of the pool
still holds what its last owner wrote, and no other process can import it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from typing import ClassVar, Final, Literal

from vmmcache import Allocation, DriverError, DriverUnavailable, Granularity, MemoryInfo, OutOfDeviceMemory, VmmDriver
from vmmcache.units import MIB, Bytes, align_down, align_up, format_bytes, parse_bytes
from vmmcache_pool._libc import allow, blank, map_part, refusal, unmap

__all__ = ["PoolDriver", "open_pool"]

UNIT: Final = 4 * MIB
VARIABLE: Final = "VMMCACHE_POOL_MEMORY"


def open_pool(index: int) -> PoolDriver:
    """Open the pool; there is one, with index 0."""
    if index:
        raise DriverUnavailable(f"there is no pool {index}", cure='There is one pool: write "pool"', driver="pool")
    return PoolDriver()


def _take(nbytes: int) -> int:
    """A memory file whose pages are all there."""
    cure = f"Set {VARIABLE} to a smaller size"
    if nbytes > (half := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2):
        reason = f"a pool of {format_bytes(nbytes)} is more than half of this machine's memory, {format_bytes(half)}"
        raise DriverUnavailable(reason, cure=cure, driver="pool")
    fd = os.memfd_create("vmmcache-pool")
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        reason = f"a pool of {format_bytes(nbytes)} is not to be had: {error.strerror}"
        raise DriverUnavailable(reason, cure=cure, driver="pool") from error
    return fd


class PoolDriver(VmmDriver):
    """A pool of shared memory. `fresh_is_zero` stays False, so vmmcache zeroes what becomes visible."""

    name: ClassVar[str] = "pool"
    device_type: ClassVar[str] = "cpu"
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]] = "DRAM"

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()  # re-entrant: a view that dies in the middle of a call may give memory back
        self._reserved: dict[int, int] = {}  # address -> bytes
        self._units: dict[int, list[int]] = {}  # handle -> places in the file, until released and unmapped everywhere
        self._live: set[int] = set()  # handles that were not released
        self._mapped: dict[int, tuple[int, int]] = {}  # address -> bytes, handle
        self._owner: dict[int, int] = {}  # address of each mapped unit -> address of its mapping
        self._granted: set[int] = set()  # addresses of mappings that may be touched
        self._total = align_up(parse_bytes(os.environ.get(VARIABLE, "128MiB"), field=VARIABLE), UNIT)
        self._fd = _take(self._total)
        weakref.finalize(self, os.close, self._fd)
        self._idle = list(range(0, self._total, UNIT))

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return 1, 0

    @property
    def torch_device(self) -> str:
        return "cpu"

    def granularity(self) -> Granularity:
        return Granularity(minimum=UNIT, recommended=UNIT)

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(free=len(self._idle) * UNIT, total=self._total, source="pool")

    def _reserve(self, nbytes: int) -> int:
        with self._lock:  # the system aligns to a page: take a unit more, and give back what sticks out at both ends
            start = blank(nbytes + UNIT)
            address = align_up(start, UNIT)
            unmap(start, address - start)
            unmap(address + nbytes, start + UNIT - address)
            self._reserved[address] = nbytes
        return address

    def _free(self, address: int, nbytes: int) -> None:
        with self._lock:
            if self._reserved.get(address) != nbytes:
                raise refusal("munmap", errno.EINVAL, address, nbytes, "no such reservation")
            if any(address <= mapped < address + nbytes for mapped in self._mapped):
                raise refusal("munmap", errno.EBUSY, address, nbytes, "memory is mapped in it")
            unmap(address, nbytes)
            del self._reserved[address]

    def _create(self, nbytes: int) -> Allocation:
        with self._lock:
            if nbytes > (free := len(self._idle) * UNIT):
                raise OutOfDeviceMemory(
                    f"pool: {format_bytes(nbytes)} wanted, {format_bytes(free)} free of {format_bytes(self._total)}. "
                    f"Commit less, or set {VARIABLE} to a larger size",
                    driver="pool",
                    call="create",
                    requested=nbytes,
                    free=free,
                    code=errno.ENOMEM,
                    name="ENOMEM",
                )
            handle = self._new_allocation_id()
            self._units[handle] = [self._idle.pop() for _ in range(nbytes // UNIT)]
            self._live.add(handle)
        return Allocation(handle, Bytes(nbytes), id=handle)

    def _release(self, handle: int) -> None:
        with self._lock:
            self._check_live("release", handle)
            self._live.remove(handle)
            self._take_back(handle)

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        with self._lock:
            self._check_live("mmap", handle)
            if not any(base <= address and address + nbytes <= base + size for base, size in self._reserved.items()):
                raise refusal("mmap", errno.EFAULT, address, nbytes, "not reserved")
            places = range(address, address + nbytes, UNIT)
            if not self._owner.keys().isdisjoint(places):
                raise refusal("mmap", errno.EEXIST, address, nbytes, "memory is mapped in it")
            try:
                for place, unit in zip(places, self._units[handle], strict=True):
                    map_part(self._fd, unit, UNIT, at=place)
            except DriverError:
                blank(nbytes, at=address)  # a verb does all of what it says, or nothing
                raise
            self._mapped[address] = nbytes, handle
            self._owner |= dict.fromkeys(places, address)

    def _grant(self, address: int, nbytes: int) -> None:
        with self._lock:
            run = self._mappings_of("mprotect", address, nbytes)
            if address not in run or sum(self._mapped[start][0] for start in run) != nbytes:
                raise refusal("mprotect", errno.EINVAL, address, nbytes, "not a run of whole mappings")
            allow(address, nbytes)
            self._granted |= run

    def _unmap(self, address: int, nbytes: int) -> None:
        with self._lock:
            if self._mapped.get(address, (0, 0))[0] != nbytes:
                raise refusal("mmap", errno.EINVAL, address, nbytes, "not exactly one mapping")
            blank(nbytes, at=address)
            _, handle = self._mapped.pop(address)
            self._granted.discard(address)
            for place in range(address, address + nbytes, UNIT):
                del self._owner[place]
            self._take_back(handle)

    def _zero(self, address: int, nbytes: int) -> None:
        self._check_access("memset", address, nbytes)
        ctypes.memset(address, 0, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._check_access("memmove", target, nbytes)
        self._check_access("memmove", source, nbytes)
        ctypes.memmove(target, source, nbytes)

    def _read(self, address: int, nbytes: int) -> bytearray:
        self._check_access("memmove", address, nbytes)
        return bytearray(ctypes.string_at(address, nbytes))

    def _write(self, address: int, data: bytes | bytearray) -> None:
        self._check_access("memmove", address, len(data))
        ctypes.memmove(address, bytes(data), len(data))

    def _synchronise(self) -> None:
        """Nothing runs behind our back."""

    # What a GPU's driver refuses by itself, and the operating system does not.

    def _mappings_of(self, call: str, address: int, nbytes: int) -> set[int]:
        units = range(align_down(address, UNIT), address + nbytes, UNIT)
        if not self._owner.keys() >= set(units):
            raise refusal(call, errno.EFAULT, address, nbytes, "not all of it is mapped")
        return {self._owner[unit] for unit in units}

    def _check_access(self, call: str, address: int, nbytes: int) -> None:
        with self._lock:
            if not self._mappings_of(call, address, nbytes) <= self._granted:
                raise refusal(call, errno.EACCES, address, nbytes, "mapped without access")

    def _check_live(self, call: str, handle: int) -> None:
        if handle not in self._live:
            raise refusal(call, errno.EBADF, 0, 0, f"allocation {handle} is unknown, or was released before")

    def _take_back(self, handle: int) -> None:
        if handle not in self._live and all(other != handle for _, other in self._mapped.values()):
            self._idle += self._units.pop(handle)
