"""Which vendor's library this process has, under which profile, and what the vendor calls things."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Final

import pytest

from tests.emulator.control import Control
from tests.emulator.journal import Record
from vmmcache import VmmDriver
from vmmcache.plugins.host import open_driver

PROFILE: Final = os.environ.get("VMMEMU_PROFILE", "")
CUDA: Final = PROFILE.startswith("cuda")
NAME: Final = "cuda" if CUDA else "hip"
UNIFORM: Final = PROFILE in ("hip-7.0", "hip-7.2")
"""Whether all allocations must have one size: a runtime that is refused unless the operator asks for that."""
KEEPS_MEMORY: Final = PROFILE == "hip-7.2"
"""Whether memory comes back only with the addresses that it was mapped at."""


def opened(index: int) -> VmmDriver:
    """The real driver on an emulated device, as any caller opens it."""
    with pytest.MonkeyPatch.context() as patch:
        if UNIFORM:
            patch.setenv("VMMCACHE_HIP_UNIFORM_CHUNKS", "1")
        return open_driver(f"{NAME}:{index}")


def fine(index: int, granule: int) -> VmmDriver:
    """The same with a small granule, for tests that fill memory thousands of times; nothing else knows what it is."""
    driver = opened(index)
    vars(driver)["granule"] = granule
    return driver


def stance(control: Control) -> int:
    """Where this thread stands: how many contexts are on its stack (CUDA), or which device is its current one (HIP)."""
    if CUDA:
        return control.context_depth()
    device = ctypes.c_int(-1)
    assert control.hipGetDevice(ctypes.byref(device)) == 0
    return device.value


def leave(control: Control, before: int, faults: Iterable[Record]) -> None:
    """Do what the driver could not, where the call by which it leaves the device was made to fail."""
    calls = {record.call for record in faults}
    if "cuCtxPopCurrent" in calls and control.context_depth() == before + 1:
        assert control.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
    if "hipSetDevice" in calls:
        assert control.hipSetDevice(before) == 0


def function(verb: str) -> str:
    """The vendor's function behind a verb of the driver."""
    names = {
        "reserve": ("cuMemAddressReserve", "hipMemAddressReserve"),
        "free": ("cuMemAddressFree", "hipMemAddressFree"),
        "create": ("cuMemCreate", "hipMemCreate"),
        "release": ("cuMemRelease", "hipMemRelease"),
        "map": ("cuMemMap", "hipMemMap"),
        "grant": ("cuMemSetAccess", "hipMemSetAccess"),
        "unmap": ("cuMemUnmap", "hipMemUnmap"),
        "zero": ("cuMemsetD8", "hipMemsetD8"),
        "copy": ("cuMemcpyDtoD", "hipMemcpy"),
        "synchronise": ("cuCtxSynchronize", "hipDeviceSynchronize"),
    }
    return names[verb][0 if CUDA else 1]
