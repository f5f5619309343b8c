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
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from vmmcache import Allocation, DriverError, DriverUnavailable, Granularity, MemoryInfo, OutOfDeviceMemory, VmmDriver
from vmmcache.units import MIB, Bytes, align_up, format_bytes, parse_bytes
from vmmcache_pool._libc import allow, blank, map_part, take, unmap

__all__ = ["PoolDriver", "open_pool"]

UNIT: Final = 4 * MIB
VARIABLE: Final = "VMMCACHE_POOL_MEMORY"
CURE: Final = f"Set {VARIABLE} to another size"


@dataclass(slots=True)
class _Memory:
    """An allocation: alive until it is released and mapped nowhere any more."""

    units: list[int]
    """Where they are in the file."""
    holders: int = 1
    """Whoever created it, and each mapping."""


def open_pool(index: int) -> PoolDriver:
    """Open the pool; there is one, with index 0."""
    if index:
        raise DriverUnavailable(f"there is no pool {index}", cure='There is one pool: write "pool"', driver="pool")
    return PoolDriver()


class PoolDriver(VmmDriver):
    """A pool of shared memory. `fresh_is_zero` stays False, so vmmcache zeroes what becomes visible."""

    name: ClassVar[str] = "pool"
    device_type: ClassVar[str] = "cpu"
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]] = "DRAM"

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()  # re-entrant: a view that dies in the middle of a call may give memory back
        self._memory: dict[int, _Memory] = {}
        self._mapped: dict[int, int] = {}  # address -> handle
        self._total = align_up(parse_bytes(os.environ.get(VARIABLE, "128MiB"), field=VARIABLE), UNIT)
        try:
            self._fd = take(self._total)
        except DriverError as error:
            raise DriverUnavailable(f"the pool is not to be had: {error}", cure=CURE, driver="pool") from error
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
        # The system aligns to a page: take a unit more, and give back what sticks out at both ends.
        start = blank(nbytes + UNIT)
        address = align_up(start, UNIT)
        unmap(start, address - start)
        unmap(address + nbytes, start + UNIT - address)
        return address

    def _free(self, address: int, nbytes: int) -> None:
        unmap(address, nbytes)

    def _create(self, nbytes: int) -> Allocation:
        with self._lock:
            if nbytes > (free := len(self._idle) * UNIT):
                raise OutOfDeviceMemory(
                    f"pool: {format_bytes(nbytes)} wanted, {format_bytes(free)} free. Commit less. {CURE}",
                    driver="pool",
                    call="create",
                    requested=nbytes,
                    free=free,
                    code=errno.ENOMEM,
                    name="ENOMEM",
                )
            handle = self._new_allocation_id()
            self._memory[handle] = _Memory([self._idle.pop() for _ in range(nbytes // UNIT)])
        return Allocation(handle, Bytes(nbytes), id=handle)

    def _release(self, handle: int) -> None:
        self._let_go(handle)

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        with self._lock:
            memory = self._memory[handle]
            try:
                for place, unit in enumerate(memory.units):
                    map_part(self._fd, unit, UNIT, at=address + place * UNIT)
            except DriverError:
                blank(nbytes, at=address)  # a verb does all of what it says, or nothing
                raise
            memory.holders += 1
            self._mapped[address] = handle

    def _grant(self, address: int, nbytes: int) -> None:
        allow(address, nbytes)

    def _unmap(self, address: int, nbytes: int) -> None:
        blank(nbytes, at=address)
        self._let_go(self._mapped.pop(address))

    def _let_go(self, handle: int) -> None:
        with self._lock:
            memory = self._memory[handle]
            memory.holders -= 1
            if not memory.holders:
                self._idle += memory.units
                del self._memory[handle]

    def _zero(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def _read(self, address: int, nbytes: int) -> bytearray:
        return bytearray(ctypes.string_at(address, nbytes))

    def _write(self, address: int, data: bytes | bytearray) -> None:
        ctypes.memmove(address, bytes(data), len(data))

    def _synchronise(self) -> None:
        """Nothing runs behind our back."""
