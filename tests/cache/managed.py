"""What tests of the manager share: a small cache, and marks in the memory behind its slots, found by other arithmetic.

Block-major memory is a run of slots for each pool of each group, in the order of the layout's groups and of their slot
sizes; that is all that is known here about where a slot is. Marks are put there past every class of vmmcache.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.fine_host import FineHostDriver
from vmmcache import CacheRequest, KVCacheManager, MemoryBudget, VmmDriver
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Request
from vmmcache.units import KIB, MIB

Make = Callable[..., KVCacheManager]
"""How a manager is made: `on_host`, `on_torch`."""

KEY: Final = Buffer("key", 8 * KIB)
LAYOUT: Final = CacheLayout(
    16,
    [
        Attention([KEY, Buffer("value", 8 * KIB)], name="full", count=2),
        Attention([Buffer("key", 16 * KIB), Buffer("value", 4 * KIB)], window=32, name="windowed"),
    ],
)
"""Two groups: slots of 32 KiB in one pool, of 16 and 4 KiB in two. A window of two blocks."""
DEMAND: Final = Batch([Request(128, 127), Request(16, 0)])
FULL, WINDOWED = 0, 1
CYCLES: Final = {FULL: 0, WINDOWED: 1}
"""The life cycle of each group."""

SETTINGS: Final[dict[str, Any]] = {
    "budget": MemoryBudget(margin_floor=MIB, margin_fraction=0, warmup_reserve=0),
    "constraints": [DEMAND],
    "chunk": MIB,
}


@contextmanager
def light_collections() -> Iterator[None]:
    """Measuring collects garbage; what other tests have imported need not be looked through each time.

    It is not given back to the collector afterwards, or the next test would look through all of it twice.
    """
    gc.collect()
    gc.freeze()
    yield


def on_host(**arguments: Any) -> KVCacheManager:
    """A manager on the measured path with a small granule, and 16 MiB if the test says so by VMMCACHE_HOST_MEMORY."""
    return KVCacheManager(LAYOUT, FineHostDriver(), **(SETTINGS | arguments))


def on_torch(**arguments: Any) -> KVCacheManager:
    """The same on the estimated path."""
    return KVCacheManager(LAYOUT, "host", **(SETTINGS | {"vmm": False} | arguments))


@dataclass(frozen=True)
class Place:
    """Bytes of a slot in one segment."""

    address: int
    nbytes: int


def bases(manager: KVCacheManager) -> list[int]:
    """Where each segment begins, as descriptors have it; of segments with nothing in them nothing is known."""
    found = {each.segment_index: each.base for each in reversed(manager.memory.registrable())}
    return [found.get(index, 0) for index in range(sum(len(group.slot_bytes) for group in LAYOUT.groups))]


def places(manager: KVCacheManager, group: int, slot: int) -> Iterator[Place]:
    """Where a slot is."""
    segment = 0
    starts = bases(manager)
    for index, pools in enumerate(LAYOUT.groups):
        for size in pools.slot_bytes:
            if index == group:
                assert starts[segment], f"segment {segment} has no memory"
                yield Place(starts[segment] + slot * size, size)
            segment += 1


def mark(manager: KVCacheManager, group: int, slot: int, value: int) -> None:
    """Fill a slot with a byte, in all its pools."""
    for place in places(manager, group, slot):
        ctypes.memset(place.address, value, place.nbytes)


def marks(manager: KVCacheManager, group: int, slot: int) -> set[int]:
    """The bytes that are in a slot, at its borders and in the middle of each of its pools."""
    found = set()
    for place in places(manager, group, slot):
        for offset in (0, place.nbytes // 2, place.nbytes - 1):
            found.add(ctypes.string_at(place.address + offset, 1)[0])
    return found


def with_driver(driver: VmmDriver, **arguments: Any) -> KVCacheManager:
    """A manager on a driver that is open."""
    return KVCacheManager(LAYOUT, driver, **(SETTINGS | arguments))


def use(manager: KVCacheManager) -> None:
    """What an engine does with a cache that works."""
    request = manager.slots.allocate(64, 40)
    manager.slots.grow(request, 65, 64)
    manager.slots.suspend(request)
    assert manager.slots.resume(request)
    manager.slots.free(request)


def live_to_the_last(manager: KVCacheManager, requests: Iterable[CacheRequest]) -> None:
    """All wait, all go on again, and all end."""
    for request in requests:
        manager.slots.suspend(request)
    for request in requests:
        assert manager.slots.resume(request)
    for request in requests:
        manager.slots.free(request)
