"""Elastic KV-cache memory on GPU virtual memory management.

Reserve addresses for the largest cache that could fit, commit memory when it is known how much is left, never move a
pointer. Start with `ExtensibleTensor`; `probe` says what this host can do.
"""

from __future__ import annotations

__all__ = [
    "PROMPT_LOGPROBS_ROWS",
    "AlignmentError",
    "Allocation",
    "BrokenConnector",
    "BrokenDriver",
    "CacheRequest",
    "Card",
    "Change",
    "ConfigError",
    "Connector",
    "ConnectorError",
    "ConnectorNeeds",
    "ConnectorSpec",
    "ConnectorUnavailable",
    "DriverError",
    "DriverSpec",
    "DriverUnavailable",
    "ExportedMemory",
    "ExtensibleTensor",
    "FoundConnector",
    "FoundDriver",
    "Granularity",
    "Held",
    "KVCacheManager",
    "LeaseError",
    "Mapping",
    "MemoryBudget",
    "MemoryInfo",
    "OutOfDeviceMemory",
    "PlanError",
    "Prefix",
    "ProbeReport",
    "Published",
    "QuotaError",
    "RankError",
    "Ranks",
    "Registrable",
    "RegistrableSegment",
    "Registration",
    "RegistrationLease",
    "RegistrationSet",
    "RemoteMemory",
    "RequestState",
    "Reservation",
    "SharedDevice",
    "SharedTensor",
    "SharingError",
    "SizingReport",
    "Slept",
    "Slots",
    "SlotsExhausted",
    "StaleSegment",
    "StateError",
    "Step",
    "Survey",
    "TensorServer",
    "TorchRanks",
    "Transfer",
    "TransferConnector",
    "VmmCacheError",
    "VmmDriver",
    "drivers",
    "hookimpl",
    "merge_measurements",
    "open_connector",
    "open_driver",
    "probe",
    "publish",
    "vmm_unavailable_reason",
    "wrap_slots",
]

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmmcache.cache.budget import MemoryBudget
    from vmmcache.cache.manager import KVCacheManager
    from vmmcache.cache.prefix import Prefix
    from vmmcache.cache.ranks import Ranks, TorchRanks, merge_measurements
    from vmmcache.cache.report import SizingReport
    from vmmcache.cache.requests import CacheRequest, RequestState
    from vmmcache.cache.shared import SharedDevice
    from vmmcache.cache.sleeping import Slept
    from vmmcache.cache.slots import Slots
    from vmmcache.cache.warmup import PROMPT_LOGPROBS_ROWS, wrap_slots
    from vmmcache.connectors.base import Connector
    from vmmcache.connectors.cards import Card, RemoteMemory
    from vmmcache.connectors.leases import RegistrationLease
    from vmmcache.connectors.needs import ConnectorNeeds
    from vmmcache.connectors.registrable import Registrable
    from vmmcache.connectors.registration import Registration
    from vmmcache.connectors.registration_set import RegistrationSet
    from vmmcache.connectors.spec import ConnectorSpec
    from vmmcache.connectors.transfer import Transfer
    from vmmcache.connectors.transfers import TransferConnector
    from vmmcache.driver import VmmDriver
    from vmmcache.errors import (
        AlignmentError,
        ConfigError,
        ConnectorError,
        ConnectorUnavailable,
        DriverError,
        DriverUnavailable,
        LeaseError,
        OutOfDeviceMemory,
        PlanError,
        QuotaError,
        RankError,
        SharingError,
        SlotsExhausted,
        StaleSegment,
        StateError,
        VmmCacheError,
    )
    from vmmcache.handles import Allocation, Granularity, Held, Mapping, MemoryInfo, Reservation
    from vmmcache.memory.atlas import Published, publish
    from vmmcache.memory.changes import Change
    from vmmcache.memory.descriptors import RegistrableSegment
    from vmmcache.memory.exports import ExportedMemory
    from vmmcache.memory.tensor import ExtensibleTensor
    from vmmcache.plugins.connectors import BrokenConnector, FoundConnector, open_connector
    from vmmcache.plugins.hookspecs import hookimpl
    from vmmcache.plugins.host import BrokenDriver, FoundDriver, drivers, open_driver
    from vmmcache.probing import probe, vmm_unavailable_reason
    from vmmcache.sharing import SharedTensor, TensorServer
    from vmmcache.spec import DriverSpec, ProbeReport, Step, Survey

    __version__: str

# Where each public name lives. Resolved at first use, so that `import vmmcache` costs next to nothing.
_HOMES = {
    "vmmcache.cache.budget": ("MemoryBudget",),
    "vmmcache.cache.prefix": ("Prefix",),
    "vmmcache.cache.ranks": ("Ranks", "TorchRanks", "merge_measurements"),
    "vmmcache.cache.manager": ("KVCacheManager",),
    "vmmcache.cache.report": ("SizingReport",),
    "vmmcache.cache.requests": ("CacheRequest", "RequestState"),
    "vmmcache.cache.slots": ("Slots",),
    "vmmcache.cache.shared": ("SharedDevice",),
    "vmmcache.cache.sleeping": ("Slept",),
    "vmmcache.cache.warmup": ("PROMPT_LOGPROBS_ROWS", "wrap_slots"),
    "vmmcache.connectors.base": ("Connector",),
    "vmmcache.connectors.cards": ("Card", "RemoteMemory"),
    "vmmcache.connectors.leases": ("RegistrationLease",),
    "vmmcache.connectors.needs": ("ConnectorNeeds",),
    "vmmcache.connectors.registrable": ("Registrable",),
    "vmmcache.connectors.registration": ("Registration",),
    "vmmcache.connectors.registration_set": ("RegistrationSet",),
    "vmmcache.connectors.spec": ("ConnectorSpec",),
    "vmmcache.connectors.transfer": ("Transfer",),
    "vmmcache.connectors.transfers": ("TransferConnector",),
    "vmmcache.memory.atlas": ("Published", "publish"),
    "vmmcache.memory.changes": ("Change",),
    "vmmcache.memory.descriptors": ("RegistrableSegment",),
    "vmmcache.memory.exports": ("ExportedMemory",),
    "vmmcache.driver": ("VmmDriver",),
    "vmmcache.handles": ("Allocation", "Granularity", "Held", "Mapping", "MemoryInfo", "Reservation"),
    "vmmcache.errors": (
        "AlignmentError",
        "ConfigError",
        "ConnectorError",
        "ConnectorUnavailable",
        "DriverError",
        "DriverUnavailable",
        "LeaseError",
        "OutOfDeviceMemory",
        "PlanError",
        "QuotaError",
        "RankError",
        "SharingError",
        "SlotsExhausted",
        "StaleSegment",
        "StateError",
        "VmmCacheError",
    ),
    "vmmcache.memory.tensor": ("ExtensibleTensor",),
    "vmmcache.plugins.connectors": ("BrokenConnector", "FoundConnector", "open_connector"),
    "vmmcache.plugins.hookspecs": ("hookimpl",),
    "vmmcache.plugins.host": ("BrokenDriver", "FoundDriver", "drivers", "open_driver"),
    "vmmcache.probing": ("probe", "vmm_unavailable_reason"),
    "vmmcache.sharing": ("SharedTensor", "TensorServer"),
    "vmmcache.spec": ("DriverSpec", "ProbeReport", "Step", "Survey"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


_MODULES = ("metrics",)
"""Modules that are used by their own names: ``vmmcache.metrics.snapshot()``."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # here: it takes longer to import than all of this

        return version(__name__)
    if name in _MODULES:
        return getattr(__import__(f"{__name__}.{name}"), name)
    if (module := _HOME.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    __import__(module)
    value = getattr(sys.modules[module], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
