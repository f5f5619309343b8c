"""The host driver with a small granule, for tests that fill memory often, and with habits of other devices."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from vmmcache import Allocation, MemoryInfo, OutOfDeviceMemory
from vmmcache.units import KIB
from vmmcache_host import _libc
from vmmcache_host._driver import HostDriver

__all__ = ["FINE", "FineHostDriver", "KeepingDriver", "UniformDriver"]

FINE: Final = 64 * KIB

_FIXED_NOREPLACE: Final = 0x100000  # asm-generic/mman-common.h of Linux; not named by Python's mmap module
_NORESERVE: Final = 0x4000

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class FineHostDriver(HostDriver):
    """Maps in units of 64 KiB, which the operating system allows. Everything else asks the driver what a granule is."""

    def __init__(self) -> None:
        super().__init__()
        vars(self)["granule"] = FINE


class UniformDriver(FineHostDriver):
    """All allocations must have one size, as on HIP before 7.12 (D4)."""

    uniform_chunks: bool = True

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        assert nbytes == self.granule, f"an allocation of {nbytes} bytes among those of {self.granule}"
        super()._map(address, nbytes, handle)


class KeepingDriver(FineHostDriver):
    """Memory comes back only when the addresses are freed that it was mapped at, as on HIP 7.2 (D10)."""

    keeps_memory: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        """Bytes that each reservation holds although nothing is mapped there any more, by address."""

    def memory_info(self) -> MemoryInfo:
        info = super().memory_info()
        return MemoryInfo(max(0, info.free - sum(self.kept.values())), info.total, "with what is kept")

    def _reserve(self, nbytes: int) -> int:
        address = super()._reserve(nbytes)
        self._sizes[address] = nbytes
        return address

    def _reserve_at(self, address: int, nbytes: int) -> int:
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | _FIXED_NOREPLACE
        if _mmap(address, nbytes, 0, kind, -1, 0) != address:
            raise _libc.refusal("mmap", ctypes.get_errno(), f"{nbytes} bytes at {address:#x}")
        self._sizes[address] = nbytes
        return address

    def _create(self, nbytes: int) -> Allocation:
        if nbytes > (free := self.memory_info().free):
            what = f"{nbytes} bytes wanted, {free} free"
            raise OutOfDeviceMemory(what, driver=self.name, call="create", requested=nbytes, free=free, name="ENOMEM")
        return super()._create(nbytes)

    def _unmap(self, address: int, nbytes: int) -> None:
        super()._unmap(address, nbytes)
        (home,) = (base for base, size in self._sizes.items() if base <= address < base + size)
        self.kept[home] = self.kept.get(home, 0) + nbytes

    def _free(self, address: int, nbytes: int) -> None:
        super()._free(address, nbytes)
        self.kept.pop(address, None)
        del self._sizes[address]
