"""What memory there is and what was done to it, as numbers that belong together (U6).

Each region counts for itself, and shows what an operation did when it ends (`vmmcache.metrics._meter` says how). So
`snapshot` never sees half an operation, and never waits for one: also while a device hangs it answers, with what there
was before.

Managers add figures of their own when they are looked at; those of one manager belong together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Final
from weakref import WeakMethod

from vmmcache.metrics._figures import (
    CacheMetrics,
    DeviceMetrics,
    GroupSlots,
    LastError,
    Latency,
    Metrics,
    device_metrics,
    total,
)
from vmmcache.metrics._histogram import BOUNDS_S
from vmmcache.metrics._meter import Meter, collect, forget, on_change

__all__ = [
    "BOUNDS_S",
    "CacheMetrics",
    "DeviceMetrics",
    "GroupSlots",
    "LastError",
    "Latency",
    "Meter",
    "Metrics",
    "on_change",
    "register",
    "reset",
    "snapshot",
]

_gauges: Final[dict[object, WeakMethod[Callable[[], CacheMetrics | None]]]] = {}


def snapshot() -> Metrics:
    """All figures of this process, as they are between two operations.

    Costs some ten microseconds a tensor. Nothing of it is recorded elsewhere: call it when somebody wants to know.
    """
    caches = [found for gauge in list(_gauges.values()) if (method := gauge()) and (found := method()) is not None]
    past, live = collect()
    devices = {
        name: device_metrics(name, sums, (each for each in live if each[0].device == name))
        for name, sums in past.items()
    }
    return Metrics(
        time=time.time(), devices=MappingProxyType(devices), total=total(devices.values()), caches=tuple(caches)
    )


def register(gauge: Callable[[], CacheMetrics | None]) -> None:
    """Ask a manager at each snapshot, as long as it lives. `gauge` is a method of it, and is held weakly.

    It may take locks of its own. None: it has nothing to say any more.
    """
    token = object()

    def gone(_: object) -> None:
        _gauges.pop(token, None)

    _gauges[token] = WeakMethod(gauge, gone)


def reset() -> None:
    """Count from zero what only grows: for tests. What there is now stays counted."""
    forget()
