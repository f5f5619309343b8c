"""Metrics for Prometheus: a collector over `vmmcache.metrics.snapshot` (extra ``prometheus``).

``register()`` once, and whatever serves the registry of `prometheus_client` serves these as well. Each scrape takes one
snapshot, so its numbers belong together; between scrapes nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from vmmcache.metrics import BOUNDS_S, CacheMetrics, DeviceMetrics, Latency, snapshot

__all__ = ["MetricsCollector", "register"]

_GAUGES: Final = {
    "tensors": "Tensors that are not closed.",
    "reserved_bytes": "Addresses that are reserved.",
    "committed_bytes": "Bytes that are visible.",
    "physical_bytes": "Bytes of allocations.",
    "allocations": "Allocations that are live.",
    "mappings": "Allocations that are mapped.",
    "leases": "Leases that connectors hold.",
    "file_descriptors": "File descriptors that allocations hold.",
}
_BOUNDS: Final = (*(repr(bound) for bound in BOUNDS_S), "+Inf")


class MetricsCollector(Collector):
    """What `snapshot` says of this process, in Prometheus' terms."""

    def collect(self) -> Iterator[Metric]:
        """One family for each figure; a sample for each device, and for each cache."""
        now = snapshot()
        yield from _of_devices(list(now.devices.values()))
        yield from _of_caches(_named(now.caches))


def register(registry: CollectorRegistry = REGISTRY) -> MetricsCollector:
    """Add a collector to a registry; give it back, for `CollectorRegistry.unregister`."""
    collector = MetricsCollector()
    registry.register(collector)
    return collector


def _of_devices(devices: list[DeviceMetrics]) -> Iterator[Metric]:
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"vmmcache_{name}", text, labels=["device"])
        for device in devices:
            gauge.add_metric([device.device], getattr(device, name))
        yield gauge
    generations = CounterMetricFamily(
        "vmmcache_generations", "How often memory that was visible went away.", labels=["device"]
    )
    calls = CounterMetricFamily(
        "vmmcache_driver_calls", "Calls of the driver that succeeded.", labels=["device", "call"]
    )
    seconds = HistogramMetricFamily(
        "vmmcache_operation_seconds",
        "How long operations took, and waits for the device.",
        labels=["device", "operation"],
    )
    errors = CounterMetricFamily("vmmcache_operation_errors", "Operations that failed.", labels=["device", "operation"])
    last = GaugeMetricFamily(
        "vmmcache_last_error_timestamp_seconds", "When an operation failed last.", labels=["device", "operation"]
    )
    for device in devices:
        generations.add_metric([device.device], device.generations)
        for call, number in device.calls.items():
            calls.add_metric([device.device, call], number)
        for operation, latency in device.operations.items():
            seconds.add_metric([device.device, operation], _buckets(latency), latency.seconds)
        for operation, number in device.errors.items():
            errors.add_metric([device.device, operation], number)
        if device.last_error is not None:
            last.add_metric([device.device, device.last_error.operation], device.last_error.time)
    yield from (generations, calls, seconds, errors, last)


def _buckets(latency: Latency) -> list[tuple[str, float]]:
    """Counts up to each bound, as Prometheus counts."""
    return list(zip(_BOUNDS, map(float, accumulate(latency.counts)), strict=True))


def _of_caches(caches: dict[str, CacheMetrics]) -> Iterator[Metric]:
    labels = ["cache", "device"]
    info = GaugeMetricFamily(
        "vmmcache_cache_info", "1 for the mode and state that a cache is in.", labels=[*labels, "mode", "state"]
    )
    nbytes = GaugeMetricFamily("vmmcache_cache_bytes", "Bytes that a cache has committed.", labels=labels)
    slots = GaugeMetricFamily("vmmcache_cache_slots", "Slots by whose they are.", labels=[*labels, "group", "whose"])
    requests = GaugeMetricFamily("vmmcache_cache_requests", "Requests by state.", labels=[*labels, "state"])
    counters = {
        "suspends": CounterMetricFamily("vmmcache_cache_suspends", "Requests that were suspended.", labels=labels),
        "resumes": CounterMetricFamily("vmmcache_cache_resumes", "Requests that were resumed.", labels=labels),
        "refusals": CounterMetricFamily(
            "vmmcache_cache_resume_refusals", "Resumes that had to wait for slots.", labels=labels
        ),
        "evictions": CounterMetricFamily(
            "vmmcache_cache_evictions", "Suspended requests that lost their slots.", labels=labels
        ),
    }
    for name, cache in caches.items():
        whose = [name, cache.device]
        info.add_metric([*whose, cache.mode, cache.state], 1)
        nbytes.add_metric(whose, cache.nbytes)
        for number, group in enumerate(cache.groups):
            for state, count in (("active", group.used), ("evictable", group.evictable), ("free", group.free)):
                slots.add_metric([*whose, str(number), state], count)
        for state, count in cache.requests.items():
            requests.add_metric([*whose, state], count)
        for field, counter in counters.items():
            counter.add_metric(whose, getattr(cache, field))
    yield from (info, nbytes, slots, requests, *counters.values())


def _named(caches: tuple[CacheMetrics, ...]) -> dict[str, CacheMetrics]:
    """Caches by tag; of those that share one, the second is called ``tag#2``: a sample may come only once."""
    named: dict[str, CacheMetrics] = {}
    for cache in caches:
        name, number = cache.tag, 1
        while name in named:
            number += 1
            name = f"{cache.tag}#{number}"
        named[name] = cache
    return named
