"""A short life in this process, for ``vmmcache map demo``: real memory of the host driver, as others would see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from vmmcache import ExtensibleTensor
from vmmcache.memory.atlas import AddressMap, look
from vmmcache.units import MIB

__all__ = ["demo_map"]


@contextmanager
def demo_map() -> Iterator[AddressMap]:
    """A cache of eight layers that grew, is leased in part, and has shrunk elsewhere; and one that sleeps."""
    with ExitStack() as stack:
        cache = stack.enter_context(ExtensibleTensor(256 * MIB, "host", segments=8))
        cache.commit(3 * MIB)
        cache.commit([7 * MIB] * 4 + [12 * MIB] * 2 + [20 * MIB] * 2)
        for layer in range(4):
            stack.enter_context(cache.lease(layer, "nixl"))
        cache.commit([7 * MIB] * 4 + [12 * MIB] * 2 + [5 * MIB] * 2)
        asleep = stack.enter_context(ExtensibleTensor(64 * MIB, "host", segments=2))
        asleep.commit(4 * MIB)
        asleep.release_physical()
        # Without those of the caller's own, where this is no process of its own.
        bases = (cache.base_address, asleep.base_address)
        found = look()
        yield AddressMap(found.pid, found.started, found.time, tuple(one for one in found.tensors if one.base in bases))
