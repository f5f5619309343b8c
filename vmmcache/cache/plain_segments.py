"""Segments of plain torch memory as connectors see them: sizes, descriptors, leases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from vmmcache.cache.plain_storages import Storages
from vmmcache.connectors.leases import LeaseBook, RegistrationLease
from vmmcache.errors import ConfigError, StaleSegment, StateError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.ranges import Range
from vmmcache.memory.segments import Segments
from vmmcache.memory.states import Event, State, next_state

__all__ = ["PlainSegments"]

_pinned: Final[set[Storages]] = set()
"""Storages that are leased: they stay also if everybody forgets them, because a NIC would not be told."""


class PlainSegments:
    """Sizes, descriptors and leases of segments. Who commits them is the subclass's.

    Parameters
    ----------
    sizes : sequence of int
        Most bytes of each segment, multiples of the granule.
    granule : int
        What descriptors call aligned.
    device : str
        What torch calls it.
    device_type : str, optional
        What connectors call it; torch's word by default.

    Raises
    ------
    DriverUnavailable
        torch is missing or cannot make a tensor on the device.
    """

    def __init__(self, sizes: Sequence[int], granule: int, device: str, device_type: str | None = None) -> None:
        self._segments: Final = Segments(sum(sizes), sizes, granule)
        self._granule: Final = granule
        storages = self._storages = Storages(device, len(sizes))
        self._device_type: Final = device_type or storages.device.type
        self._state = State.RESERVED
        self._generation = 0
        # Re-entrant: an owner that is made to let go may look at what it had.
        self._lock: Final = threading.RLock()
        self._leases: Final = LeaseBook(granule)
        self._leases.on_drop = partial(_unpin, storages, self._leases, self._lock)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} on {self.device}, {self.committed_bytes} of {self._segments.capacity} bytes "
            f"committed in {len(self._segments)} segments, {self.state}>"
        )

    # What there is --------------------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """What torch calls the device."""
        return str(self._storages.device)

    @property
    def state(self) -> str:
        """``"reserved"``, ``"committed"``, ``"asleep"`` or ``"closed"``; see `vmmcache.memory.states`."""
        return self._state.value

    @property
    def generation(self) -> int:
        """A number that rises whenever committed bytes go away or move (C4)."""
        return self._generation

    @property
    def segment_sizes(self) -> tuple[int, ...]:
        """Most bytes of each segment."""
        return self._segments.sizes

    @property
    def committed(self) -> tuple[int, ...]:
        """Committed bytes of each segment; all 0 while asleep."""
        return self._storages.sizes

    @property
    def committed_bytes(self) -> int:
        """Sum of `committed`."""
        return sum(self.committed)

    @property
    def physical_bytes(self) -> int:
        """Bytes of all storages, which are exactly the committed ones."""
        return self.committed_bytes

    # Connectors -----------------------------------------------------------------------------------------------------

    def registrable(self) -> tuple[RegistrableSegment, ...]:
        """What a connector may register: one descriptor for each committed segment, by address.

        That it is one allocation is what torch's allocator does by default; with expandable segments it may not be.
        """
        with self._lock:
            if self._state is State.CLOSED:
                raise self._wrong("registrable", "make a new one")
            found = (self._described(index, size) for index, size in enumerate(self.committed) if size)
            return tuple(sorted(found, key=lambda each: each.base))

    def _described(self, index: int, nbytes: int) -> RegistrableSegment:
        base, device = self._storages.address(index), self._storages.device
        return RegistrableSegment(
            base=base,
            nbytes=nbytes,
            device_type=self._device_type,
            device_id=0 if device.type == "cpu" else device.index,
            mem_type="DRAM" if device.type == "cpu" else "VRAM",
            segment_index=index,
            logical_offset=0,
            allocation_id=self._storages.allocation_ids[index],
            allocation_offset=0,
            allocation_nbytes=nbytes,
            single_allocation=True,
            whole=True,
            aligned=base % self._granule == 0 and nbytes % self._granule == 0,
            generation=self._generation,
            rdma_capable=None,
            handle_types=frozenset(),
        )

    def check(self, segment: RegistrableSegment) -> None:
        """See that a descriptor still describes this memory.

        Raises
        ------
        StaleSegment
            Memory has gone away or moved since the descriptor was made.
        """
        if not isinstance(segment, RegistrableSegment):
            raise ConfigError("segment", segment, "must be a RegistrableSegment of this memory")
        with self._lock:
            live = self._state is State.COMMITTED and segment.allocation_id in self._storages.allocation_ids
            if segment.generation != self._generation or not live:
                raise StaleSegment(
                    f"{segment.nbytes} bytes at {segment.base:#x} were described in generation {segment.generation}; "
                    f"{self!r} is in generation {self._generation}. Take registrable() again and register that",
                    owners=tuple(lease.owner for lease in self._leases.on(segment.segment_index)),
                )

    def lease(
        self, i: int, owner: str, on_revoke: Callable[[RegistrationLease], object] | None = None
    ) -> RegistrationLease:
        """Promise `owner` that segment `i` stays as and where it is, until the lease is released.

        Parameters and errors are those of `vmmcache.ExtensibleTensor.lease`. Other segments may change meanwhile; this
        one may not even grow, because it would move.
        """
        index = self._segments.index(i)
        _check_owner(owner)
        if on_revoke is not None and not callable(on_revoke):
            raise ConfigError("on_revoke", on_revoke, "must be callable")
        with self._lock:
            self._advance(Event.LEASE)
            if not (nbytes := self.committed[index]):
                raise self._wrong(Event.LEASE.value, f"segment {index} has nothing committed; commit before you lease")
            lease = RegistrationLease(
                self._leases,
                owner=owner,
                segment_index=index,
                start=self._segments.offsets[index],
                address=self._storages.address(index),
                nbytes=nbytes,
                generation=self._generation,
                on_revoke=on_revoke,
            )
            self._leases.take(lease)
            _pinned.add(self._storages)
            return lease

    def check_leases(self, *, revoke: bool = False) -> None:
        """See that nothing is leased. As `vmmcache.ExtensibleTensor.check_leases`."""
        if revoke:
            self._leases.revoke(self._visible())
        self._leases.guard(self._visible())

    # ----------------------------------------------------------------------------------------------------------------

    def _advance(self, event: Event) -> State:
        return next_state(self._state, event, who=self)

    def _wrong(self, event: str, cure: str) -> StateError:
        return StateError(f"{self!r} does not allow {event}(); {cure}", state=self.state, event=event)

    def _visible(self) -> list[Range]:
        return self._segments.between(None, self.committed)


def _unpin(storages: Storages, leases: LeaseBook, lock: AbstractContextManager[object]) -> None:
    with lock:
        if not len(leases):
            _pinned.discard(storages)


def _check_owner(owner: object) -> None:
    if not isinstance(owner, str) or not owner:
        raise ConfigError("owner", owner, "must be a name that refusals can show")
