"""What a snapshot consists of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any, Final

from vmmcache.metrics._histogram import BOUNDS_S
from vmmcache.metrics._meter import Meter, Shown
from vmmcache.metrics._sums import Sums

__all__ = ["CacheMetrics", "DeviceMetrics", "GroupSlots", "LastError", "Latency", "Metrics", "device_metrics", "total"]

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Latency:
    """How long operations of one kind took."""

    counts: tuple[int, ...]
    """One for each of `vmmcache.metrics.BOUNDS_S`, of durations up to that bound and above the one before; then one
    for longer ones."""
    seconds: float
    """All together."""

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class LastError:
    """The last operation that failed."""

    time: float
    """Unix time."""
    operation: str
    what: str
    """Kind and message."""


@dataclass(frozen=True, slots=True)
class DeviceMetrics:
    """Figures of one device, or of all."""

    device: str
    """The device string; ``"total"`` for all."""
    tensors: int
    """Tensors that were not closed, those of other processes that are mapped here included."""
    reserved_bytes: int
    """Addresses."""
    committed_bytes: int
    """Visible bytes."""
    physical_bytes: int
    """Bytes of all allocations."""
    allocations: int
    mappings: int
    leases: int
    file_descriptors: int
    """Those that the allocations hold."""
    generations: int
    """How often memory that was visible went away."""
    calls: Mapping[str, int]
    """Calls of the driver that succeeded, by verb."""
    operations: Mapping[str, Latency]
    """Operations by name, those that failed included; ``"wait"``: for the device."""
    errors: Mapping[str, int]
    """Operations that failed, by name."""
    last_error: LastError | None

    def to_dict(self) -> dict[str, Any]:
        """As the JSON schema ``metrics`` says."""
        return {
            "tensors": self.tensors,
            "reserved_bytes": self.reserved_bytes,
            "committed_bytes": self.committed_bytes,
            "physical_bytes": self.physical_bytes,
            "allocations": self.allocations,
            "mappings": self.mappings,
            "leases": self.leases,
            "file_descriptors": self.file_descriptors,
            "generations": self.generations,
            "calls": dict(self.calls),
            "operations": {
                name: {"count": latency.count, "seconds": latency.seconds, "counts": list(latency.counts)}
                for name, latency in self.operations.items()
            },
            "errors": dict(self.errors),
            "last_error": None
            if self.last_error is None
            else {"time": self.last_error.time, "operation": self.last_error.operation, "what": self.last_error.what},
        }


@dataclass(frozen=True, slots=True)
class GroupSlots:
    """Slots of one pool group."""

    total: int
    """That requests can have."""
    used: int
    """Active requests' own."""
    evictable: int
    """Suspended requests' alone."""

    @property
    def free(self) -> int:
        """Nobody's."""
        return self.total - self.used - self.evictable


@dataclass(frozen=True, slots=True)
class CacheMetrics:
    """Figures of one `KVCacheManager`, taken together under the lock of its slots."""

    tag: str
    device: str
    mode: str
    state: str
    nbytes: int
    """Bytes that the cache has committed."""
    groups: tuple[GroupSlots, ...]
    requests: Mapping[str, int]
    """Requests by state."""
    suspends: int
    resumes: int
    refusals: int
    """Resumes that had to wait."""
    evictions: int
    """Requests whose slots went to others, or with the memory."""

    def to_dict(self) -> dict[str, Any]:
        """As the JSON schema ``metrics`` says."""
        return {
            "tag": self.tag,
            "device": self.device,
            "mode": self.mode,
            "state": self.state,
            "nbytes": self.nbytes,
            "groups": [
                {"total": group.total, "used": group.used, "evictable": group.evictable, "free": group.free}
                for group in self.groups
            ],
            "requests": dict(self.requests),
            "suspends": self.suspends,
            "resumes": self.resumes,
            "refusals": self.refusals,
            "evictions": self.evictions,
        }


@dataclass(frozen=True, slots=True)
class Metrics:
    """What `vmmcache.metrics.snapshot` found."""

    time: float
    """Unix time."""
    devices: Mapping[str, DeviceMetrics]
    """By device string."""
    total: DeviceMetrics
    caches: tuple[CacheMetrics, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, as ``schemas/metrics.schema.json`` of the package says."""
        return {
            "schema": SCHEMA,
            "time": self.time,
            "bounds_s": list(BOUNDS_S),
            "devices": {name: device.to_dict() for name, device in self.devices.items()},
            "total": self.total.to_dict(),
            "caches": [cache.to_dict() for cache in self.caches],
        }


def device_metrics(device: str, past: Sums, found: Iterable[tuple[Meter, Shown, int]]) -> DeviceMetrics:
    """Figures of a device: what closed regions have done, and what those that are there have and did."""
    sums, live = past, list(found)
    descriptors = 0
    for meter, shown, _ in live:
        own = shown.total()
        sums = sums.merged(own)
        descriptors += meter.fds * own.allocations
    return DeviceMetrics(
        device=device,
        tensors=sum(not meter.is_closed for meter, _, _ in live),
        reserved_bytes=sum(shown.reserved for _, shown, _ in live),
        committed_bytes=sum(shown.committed for _, shown, _ in live),
        physical_bytes=sum(shown.physical for _, shown, _ in live),
        allocations=sums.allocations,
        mappings=sums.mappings,
        leases=sum(leases for _, _, leases in live),
        file_descriptors=descriptors,
        generations=sums.generations,
        calls=MappingProxyType(dict(sums.calls)),
        operations=MappingProxyType(
            {name: Latency(histogram.counts, histogram.nanoseconds / 1e9) for name, histogram in sums.times.items()}
        ),
        errors=MappingProxyType(dict(sums.errors)),
        last_error=None if sums.last_error is None else LastError(*sums.last_error),
    )


def total(devices: Iterable[DeviceMetrics]) -> DeviceMetrics:
    """The sum of all devices; of the last errors the latest."""
    found = list(devices)

    def summed(name: str) -> Any:
        return sum(getattr(device, name) for device in found)

    def by_name(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
        sums: dict[str, int] = {}
        for each in counts:
            for name, number in each.items():
                sums[name] = sums.get(name, 0) + number
        return MappingProxyType(sums)

    latencies: dict[str, list[Latency]] = {}
    for device in found:
        for name, latency in device.operations.items():
            latencies.setdefault(name, []).append(latency)
    errors = [device.last_error for device in found if device.last_error is not None]
    numbers = ("tensors", "reserved_bytes", "committed_bytes", "physical_bytes", "allocations", "mappings", "leases")
    return DeviceMetrics(
        device="total",
        **{name: summed(name) for name in (*numbers, "file_descriptors", "generations")},
        calls=by_name(device.calls for device in found),
        operations=MappingProxyType({name: reduce(_merged, parts) for name, parts in latencies.items()}),
        errors=by_name(device.errors for device in found),
        last_error=max(errors, key=lambda error: error.time, default=None),
    )


def _merged(one: Latency, other: Latency) -> Latency:
    return Latency(tuple(map(add, one.counts, other.counts)), one.seconds + other.seconds)
