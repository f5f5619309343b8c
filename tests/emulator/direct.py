"""Call an emulated library's C interface directly, one fresh library per test.

Each `Library` is a copy of the built file under a name of its own, so the loader gives it memory of its own: tests of
many profiles run in one process, and none sees what another left behind.
"""

from __future__ import annotations

import _ctypes
import ctypes
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.emulator import build
from tests.emulator.control import Control, Vendor

MIB2: Final = 2 << 20

# The layouts and numbers of both vendors (facts 1.1, 2.1).
READ_WRITE: Final = 3
POSIX_FD: Final = 1
FABRIC: Final = 8
DEVICE: Final = 1
HOST: Final = 2


class Location(ctypes.Structure):
    """CUmemLocation, hipMemLocation: 8 bytes."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp, hipMemAllocationProp: 32 bytes."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc, hipMemAccessDesc: 12 bytes."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


def properties(
    device: int = 0, *, handle_types: int = 0, rdma: int = 0, location: int = DEVICE, type_: int = 1
) -> Properties:
    """Properties of pinned memory on a device."""
    return Properties(type=type_, handle_types=handle_types, location=Location(location, device), rdma=rdma)


def _argument(value: object) -> object:
    # Integers are passed as 64 bits: wide enough for a pointer, and harmless where the callee reads fewer.
    if isinstance(value, int):
        return ctypes.c_uint64(value)
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return value


class Library:
    """A private copy of an emulated library."""

    def __init__(self, vendor: Vendor, profile: str, folder: Path, **knobs: int) -> None:
        product = "cuda" if vendor == "cuda" else "hip-6" if profile.startswith("hip-6") else "hip-7"
        self.prefix = "cu" if vendor == "cuda" else "hip"
        self.path = folder / f"{profile}-{len(list(folder.iterdir()))}.so"
        shutil.copyfile(build.library(product), self.path)
        self.control = Control(self.path)
        self.control.profile(profile, report=0, **knobs)

    def close(self) -> None:
        """Unload the library, and take away what it holds of this process."""
        self.control.vmmemu_discard()
        _ctypes.dlclose(self.control.handle)

    def __call__(self, name: str, *arguments: object) -> int:
        """Call an entry point by its exported name; its code."""
        return int(getattr(self.control, name)(*map(_argument, arguments)))

    def get(self, name: str, *arguments: object) -> tuple[int, int]:
        """Call an entry point whose first argument is where a number goes; code and number."""
        value = ctypes.c_uint64()
        return self(name, ctypes.byref(value), *arguments), value.value

    def get_last(self, name: str, *arguments: object) -> tuple[int, int]:
        """Call an entry point whose last argument is where a number goes; code and number."""
        value = ctypes.c_uint64()
        return self(name, *arguments, ctypes.byref(value)), value.value

    def start(self) -> Library:
        """Be ready for device work in this thread: CUDA wants cuInit and a context."""
        if self.prefix == "cu":
            self.ok("cuInit", 0)
            self.ok("cuCtxPushCurrent_v2", self.ok_get("cuDevicePrimaryCtxRetain", 0))
        return self

    def ok(self, name: str, *arguments: object) -> None:
        """Call what must succeed."""
        code = self(name, *arguments)
        assert code == 0, f"{name} answered {code}"

    def ok_get(self, name: str, *arguments: object) -> int:
        """Get what must be got."""
        code, value = self.get(name, *arguments)
        assert code == 0, f"{name} answered {code}"
        return value

    # The VMM calls, which have the same arguments on both vendors. ----------------------------------------------------

    def mem(self, verb: str, *arguments: object) -> int:
        """``mem("Map", ...)`` is cuMemMap or hipMemMap."""
        return self(f"{self.prefix}Mem{verb}", *arguments)

    def reserve(self, size: int = 8 * MIB2) -> int:
        """A fresh reservation's address."""
        return self.ok_get(f"{self.prefix}MemAddressReserve", size, 0, 0, 0)

    def create(self, size: int = MIB2, device: int = 0, **kinds: int) -> int:
        """A fresh allocation's handle."""
        return self.ok_get(f"{self.prefix}MemCreate", size, properties(device, **kinds), 0)

    def place(self, address: int, size: int = MIB2, **kinds: int) -> int:
        """Create and map; the handle. No access yet."""
        handle = self.create(size, **kinds)
        assert self.mem("Map", address, size, 0, handle, 0) == 0
        return handle

    def access(self, address: int, size: int, devices: Sequence[int] = (0,), flags: int = READ_WRITE) -> int:
        """Set access; the code."""
        array = (Access * len(devices))(*(Access(Location(DEVICE, device), flags) for device in devices))
        return self.mem("SetAccess", address, size, array, len(devices))

    def commit(self, address: int, size: int = MIB2, **kinds: int) -> int:
        """Create, map and grant; the handle."""
        handle = self.place(address, size, **kinds)
        assert self.access(address, size) == 0
        return handle

    def synchronise(self) -> int:
        """Wait for the device; the code."""
        return self("cuCtxSynchronize" if self.prefix == "cu" else "hipDeviceSynchronize")

    def fill(self, address: int, value: int, size: int, stream: int | None = None) -> int:
        """memset, on a stream if one is named; the code."""
        if stream is None:
            return self("cuMemsetD8_v2" if self.prefix == "cu" else "hipMemsetD8", address, value, size)
        return self(f"{self.prefix}MemsetD8Async", address, value, size, stream)


def peek(address: int, size: int = 1) -> bytes:
    """Bytes at an address, as the processor sees them."""
    return ctypes.string_at(address, size)


def poke(address: int, data: bytes) -> None:
    """Write bytes to an address."""
    ctypes.memmove(address, data, len(data))


def buffer(size: int = 64) -> Any:
    """Room for an answer that is no single number."""
    return ctypes.create_string_buffer(size)
