"""Elastic KV-cache memory on GPU virtual memory management.

Reserve addresses for the largest cache that could fit, commit memory when it is known how much is left, never move a
pointer. Start with `ExtensibleTensor`; `probe` says what this host can do.
"""

from __future__ import annotations

__all__ = [
    "AlignmentError",
    "Allocation",
    "BrokenDriver",
    "ConfigError",
    "DriverError",
    "DriverSpec",
    "DriverUnavailable",
    "ExtensibleTensor",
    "FoundDriver",
    "Granularity",
    "Held",
    "LeaseError",
    "Mapping",
    "MemoryInfo",
    "OutOfDeviceMemory",
    "PlanError",
    "ProbeReport",
    "QuotaError",
    "RankError",
    "RegistrableSegment",
    "RegistrationLease",
    "Reservation",
    "StaleSegment",
    "StateError",
    "Step",
    "Survey",
    "VmmCacheError",
    "VmmDriver",
    "drivers",
    "hookimpl",
    "open_driver",
    "probe",
    "vmm_unavailable_reason",
]

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmmcache.connectors.leases import RegistrationLease
    from vmmcache.driver import VmmDriver
    from vmmcache.errors import (
        AlignmentError,
        ConfigError,
        DriverError,
        DriverUnavailable,
        LeaseError,
        OutOfDeviceMemory,
        PlanError,
        QuotaError,
        RankError,
        StaleSegment,
        StateError,
        VmmCacheError,
    )
    from vmmcache.handles import Allocation, Granularity, Held, Mapping, MemoryInfo, Reservation
    from vmmcache.memory.descriptors import RegistrableSegment
    from vmmcache.memory.tensor import ExtensibleTensor
    from vmmcache.plugins.hookspecs import hookimpl
    from vmmcache.plugins.host import BrokenDriver, FoundDriver, drivers, open_driver
    from vmmcache.probing import probe, vmm_unavailable_reason
    from vmmcache.spec import DriverSpec, ProbeReport, Step, Survey

# Where each public name lives. Resolved at first use, so that `import vmmcache` costs next to nothing.
_HOMES = {
    "vmmcache.connectors.leases": ("RegistrationLease",),
    "vmmcache.memory.descriptors": ("RegistrableSegment",),
    "vmmcache.driver": ("VmmDriver",),
    "vmmcache.handles": ("Allocation", "Granularity", "Held", "Mapping", "MemoryInfo", "Reservation"),
    "vmmcache.errors": (
        "AlignmentError",
        "ConfigError",
        "DriverError",
        "DriverUnavailable",
        "LeaseError",
        "OutOfDeviceMemory",
        "PlanError",
        "QuotaError",
        "RankError",
        "StaleSegment",
        "StateError",
        "VmmCacheError",
    ),
    "vmmcache.memory.tensor": ("ExtensibleTensor",),
    "vmmcache.plugins.hookspecs": ("hookimpl",),
    "vmmcache.plugins.host": ("BrokenDriver", "FoundDriver", "drivers", "open_driver"),
    "vmmcache.probing": ("probe", "vmm_unavailable_reason"),
    "vmmcache.spec": ("DriverSpec", "ProbeReport", "Step", "Survey"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if (module := _HOME.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    __import__(module)
    value = getattr(sys.modules[module], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
