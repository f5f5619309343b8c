"""What AMD's runtime says before a device is opened. In the probe's child process only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import CDLL
from pathlib import Path
from typing import Final

from vmmcache import DriverError, DriverUnavailable, Step, Survey
from vmmcache.quirks import applying
from vmmcache.spec import ask
from vmmcache_hip import _library
from vmmcache_hip._api import Api, Code
from vmmcache_hip._quirks import QUIRKS
from vmmcache_hip._version import check_version, version_of

__all__ = ["ENTRY_POINTS", "survey"]

ENTRY_POINTS: Final = (
    "hipMemAddressReserve",
    "hipMemAddressFree",
    "hipMemCreate",
    "hipMemRelease",
    "hipMemMap",
    "hipMemUnmap",
    "hipMemSetAccess",
    "hipMemGetAllocationGranularity",
    "hipMemExportToShareableHandle",
    "hipMemImportFromShareableHandle",
)


def survey() -> Survey:
    """Load, entry points, bindings, version, initialisation, devices."""
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
        quirks=tuple(quirk.what for quirk in applying(QUIRKS, found.version).values()) if found.version else (),
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
        yield "runtime version", self._runtime_version
        yield "initialise", self._initialise
        yield "device", self._find_devices

    @property
    def api(self) -> Api:
        assert self._api is not None  # the question before imported it
        return self._api

    def _load(self) -> str:
        self._library = _library.load()
        return Path(_library.loaded_from() or "libamdhip64.so").name

    def _entry_points(self) -> str:
        missing = [name for name in ENTRY_POINTS if not hasattr(self._library, name)]
        if missing:
            raise _no(f"the runtime lacks {', '.join(missing)}", "Update to ROCm 7.12 or newer", "dlsym")
        return f"all {len(ENTRY_POINTS)}"

    def _bindings(self) -> str:
        self._api = Api()
        return "hip.hip"

    def _runtime_version(self) -> str:
        self.version = version_of(self.api.version)
        uniform = check_version(self.version)
        text = f"{self.version[0]}.{self.version[1]} ({self.api.version})"
        return f"{text}, all allocations of one size" if uniform else text

    def _initialise(self) -> str:
        try:
            self.api.call("hipInit", 0)
        except DriverError as error:
            if error.code in (Code.NO_DEVICE, Code.INVALID_DEVICE):
                raise _no(f"the runtime finds no device ({error.name})", _no_device_cure(), "hipInit") from error
            raise
        return "hipInit"

    def _find_devices(self) -> str:
        try:
            count = self.api.call("hipGetDeviceCount")
        except DriverError as error:
            if error.code != Code.NO_DEVICE:
                raise
            count = 0
        if not count:
            raise _no("the runtime finds no device", _no_device_cure(), "hipGetDeviceCount")
        for index in range(count):
            name = self.api.call("hipDeviceGetName", 256, index)
            self.devices.append(bytes(name).split(b"\0", 1)[0].decode(errors="replace"))
        return f"{count}"


def _no(reason: str, cure: str, call: str) -> DriverUnavailable:
    return DriverUnavailable(reason, cure=cure, driver="hip", call=call)


def _no_device_cure(devices: Path = Path("/dev")) -> str:
    if not any((devices / name).exists() for name in ("kfd", "dxg")):  # under WSL2 it is dxg
        return "No device node /dev/kfd is here: pass it and /dev/dri into the container, or load the amdgpu module"
    return "Check rocminfo, HIP_VISIBLE_DEVICES, and the right to open /dev/kfd (group render)"
