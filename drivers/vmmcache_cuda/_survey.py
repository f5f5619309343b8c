"""What NVIDIA's library says before a device is opened. In the probe's child process only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import CDLL
from pathlib import Path
from typing import Final

from vmmcache import DriverError, DriverUnavailable, Step, Survey
from vmmcache.quirks import applying
from vmmcache.spec import ask
from vmmcache_cuda import _library
from vmmcache_cuda._api import Api, Code
from vmmcache_cuda._quirks import QUIRKS, platform

__all__ = ["ENTRY_POINTS", "survey"]

ENTRY_POINTS: Final = (
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetAllocationGranularity",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
)
_OLDEST: Final = (11, 0)
"""cuMemAddressReserve and its kin came with 10.2; retained handles and the pointer attributes with 11."""


def survey() -> Survey:
    """Load, entry points, initialisation, version, devices."""
    found = _Survey()
    steps: list[Step] = []
    for name, question in found.questions():
        steps.append(ask(name, question))
        if not steps[-1].ok:
            break
    return Survey(
        steps=tuple(steps),
        devices=tuple(found.devices),
        library_path=_library.loaded_from(),
        library_version=".".join(map(str, found.version)) if found.version else None,
        quirks=tuple(quirk.what for quirk in applying(QUIRKS, found.version, platform()).values())
        if found.version
        else (),
    )


class _Survey:
    def __init__(self) -> None:
        self.devices: list[str] = []
        self.version: tuple[int, int] | None = None
        self._library: CDLL | None = None
        self._api: Api | None = None

    def questions(self) -> Iterator[tuple[str, Callable[[], str | None]]]:
        yield "load", self._load
        yield "entry points", self._entry_points
        yield "bindings", self._bindings
        yield "initialise", self._initialise
        yield "runtime version", self._runtime_version
        yield "device", self._find_devices

    @property
    def api(self) -> Api:
        assert self._api is not None  # the question before imported it
        return self._api

    def _load(self) -> str:
        self._library = _library.load()
        return _library.LIBRARY

    def _entry_points(self) -> str:
        missing = [name for name in ENTRY_POINTS if not hasattr(self._library, name)]
        if missing:
            raise _no(f"the library lacks {', '.join(missing)}", "Update the NVIDIA display driver", "dlsym")
        return f"all {len(ENTRY_POINTS)}"

    def _bindings(self) -> str:
        # A stub answers every call with one and the same status, also the call by which the bindings look for
        # functions, so that they would report functions missing. Asked directly, it says what it is.
        assert self._library is not None  # loaded by the first question
        if self._library.cuInit(0) == Code.STUB_LIBRARY:
            raise _no(
                f"{_library.loaded_from()} is a stub for linking, not the driver",
                "Take its folder off LD_LIBRARY_PATH, and install the NVIDIA display driver",
                "cuInit",
            )
        self._api = Api()
        return "cuda.bindings.driver"

    def _initialise(self) -> str:
        try:
            self.api.call("cuInit", 0)
        except DriverError as error:
            if error.code == Code.NO_DEVICE:
                raise _no("the library finds no device (CUDA_ERROR_NO_DEVICE)", _no_device_cure(), "cuInit") from error
            raise
        return "cuInit"

    def _runtime_version(self) -> str:
        self.version = divmod(self.api.call("cuDriverGetVersion") // 10, 100)
        text = ".".join(map(str, self.version))
        if self.version < _OLDEST:
            raise _no(f"the driver is for CUDA {text}, older than 11.0", "Update the NVIDIA display driver", "version")
        return text

    def _find_devices(self) -> str:
        count = self.api.call("cuDeviceGetCount")
        if not count:
            raise _no("the library finds no device", _no_device_cure(), "cuDeviceGetCount")
        for index in range(count):
            name = self.api.call("cuDeviceGetName", 256, self.api.call("cuDeviceGet", index))
            self.devices.append(name.split(b"\0", 1)[0].decode(errors="replace"))
        return f"{count}"


def _no(reason: str, cure: str, call: str) -> DriverUnavailable:
    return DriverUnavailable(reason, cure=cure, driver="cuda", call=call)


def _no_device_cure(devices: Path = Path("/dev")) -> str:
    # Under WSL2 it is dxg, on a Jetson nvmap.
    if not any((devices / name).exists() for name in ("nvidiactl", "dxg", "nvmap")):
        return "No device node /dev/nvidia* is here: pass the GPU into the container, or load the kernel module"
    return "Check nvidia-smi and CUDA_VISIBLE_DEVICES"
