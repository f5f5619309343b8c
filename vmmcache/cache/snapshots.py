"""What a device's memory looks like at a moment, and what comes and goes between two."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from vmmcache.driver import VmmDriver
from vmmcache.handles import MemoryInfo
from vmmcache.host_memory import read_host_memory
from vmmcache.units import KIB

__all__ = ["MemoryReader", "Snapshot"]

_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # proc(5): sets the peak resident set size back to the present one


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of a device at a moment, in bytes."""

    free: int
    """Of the whole device: neighbours count."""
    total: int
    source: str
    """Who says so: "driver", "cgroup", "MemAvailable", "configured", ..."""
    committed: int = 0
    """What vmmcache managers of this process hold on this device."""
    reserved_peak: int = 0
    """Most that the allocator of everything else had reserved since `MemoryReader.start_peak`."""
    live: int = 0
    """What it has in use now."""
    stage: str = ""
    """When: "start", "profiled", "warm", ..."""

    @property
    def headroom(self) -> int:
        """Free, and committed to caches."""
        return self.free + self.committed

    @property
    def transient_peak(self) -> int:
        """What came and went: reserved, because rounding and fragmentation will be there again."""
        return max(0, self.reserved_peak - self.live)


class _Use(NamedTuple):
    peak: int
    live: int
    reason: str


class MemoryReader:
    """Reads the memory of one device.

    Parameters
    ----------
    driver : VmmDriver, optional
        Who knows the device's memory. Totals come from it also where an administrator's tool would say otherwise, as on
        a slice of a shared GPU.
    torch_device : str, optional
        What torch calls the device, where there is no driver; by default the driver's own, else the host.
    memory_info : callable, optional
        Another source of free and total memory, for machines whose driver cannot know: where memory is unified, what a
        driver calls free leaves out what the system would give back.
    """

    def __init__(
        self,
        driver: VmmDriver | None = None,
        torch_device: str | None = None,
        memory_info: Callable[[], MemoryInfo] | None = None,
    ) -> None:
        self._torch_device: Final = torch_device or ("cpu" if driver is None else driver.torch_device)
        self._on_host: Final = self._torch_device == "cpu"
        self._memory_info: Final = memory_info or self._source(driver)
        self._reset: bool = False

    @property
    def peak_source(self) -> str:
        """Where the transient peak comes from, or why it is 0."""
        return self._use().reason

    def snapshot(self, stage: str, committed: int = 0) -> Snapshot:
        """Read now. The device should be idle, and `settle` done where what is left is to be measured."""
        now, use = self._memory_info(), self._use()
        return Snapshot(now.free, now.total, now.source, committed, use.peak, use.live, stage)

    def settle(self) -> None:
        """Give back what torch's allocator holds and nobody uses, so that it does not count as used."""
        gc.collect()
        if (module := self._allocator()) is not None:
            module.empty_cache()

    def start_peak(self) -> None:
        """Forget earlier peaks. They are the process's, so that two readers of a device disturb each other."""
        if self._on_host:
            self._reset = _reset_peak()
        elif (module := self._allocator()) is not None:
            module.reset_peak_memory_stats(self._torch_device)

    def transient_peak(self) -> int:
        """Bytes by which what was reserved since `start_peak` exceeds what is in use now; `peak_source` says whose."""
        use = self._use()
        return max(0, use.peak - use.live)

    def _source(self, driver: VmmDriver | None) -> Callable[[], MemoryInfo]:
        if driver is not None:
            return driver.memory_info
        return _of_host if self._on_host else self._of_torch

    def _of_torch(self) -> MemoryInfo:
        import torch

        free, total = torch.get_device_module(self._torch_device).mem_get_info(self._torch_device)
        return MemoryInfo(int(free), int(total), "runtime")

    def _allocator(self) -> ModuleType | None:
        """torch's module for the device; None where this process has not used it, so that asking does not start it."""
        torch = sys.modules.get("torch")
        if torch is None or self._on_host:
            return None
        module: ModuleType = torch.get_device_module(self._torch_device)
        return module if module.is_available() and module.is_initialized() else None

    def _use(self) -> _Use:
        if self._on_host:
            since = "" if self._reset else ", since the process began: it could not be set back"
            return _Use(*_resident(), f"peak resident set size{since}")
        if (module := self._allocator()) is None:
            return _Use(0, 0, f"torch's allocator has not used {self._torch_device}: no peak was seen")
        peak = module.max_memory_reserved(self._torch_device)
        return _Use(int(peak), int(module.memory_allocated(self._torch_device)), "torch's allocator: most reserved")


def _of_host() -> MemoryInfo:
    now = read_host_memory()
    return MemoryInfo(now.free, now.total, now.source)


def _resident() -> tuple[int, int]:
    """Peak and present resident set size."""
    fields = dict(line.split(":", 1) for line in _STATUS.read_text("utf-8").splitlines() if ":" in line)
    peak, now = (int(fields[name].split()[0]) * KIB for name in ("VmHWM", "VmRSS"))
    return peak, now


def _reset_peak() -> bool:
    """Set the peak back; False where the system does not let us, as in some containers."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, "ascii")
    except OSError:
        return False
    return True
