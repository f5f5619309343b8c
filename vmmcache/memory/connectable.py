"""What connectors and other processes are given of a tensor: descriptors, leases, handles."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final

from vmmcache.connectors.leases import LeaseBook, RegistrationLease
from vmmcache.driver import HandleType
from vmmcache.errors import ConfigError, DriverUnavailable, StaleSegment, StateError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.exports import ExportedMemory
from vmmcache.memory.lifetime import Lifetime
from vmmcache.memory.segmented import SegmentedRegion
from vmmcache.memory.states import Event, State
from vmmcache.memory.touchable import TouchableSegments
from vmmcache.units import align_down, align_up

__all__ = ["ConnectableSegments"]

_KINDS: Final[tuple[HandleType, ...]] = ("posix_fd", "fabric")


class ConnectableSegments(TouchableSegments):
    """Segments whose memory is this process's own, so that it can be promised and handed on."""

    def __init__(self, memory: SegmentedRegion, leases: LeaseBook, lifetime: Lifetime) -> None:
        super().__init__(memory.region, memory.segments, lifetime)
        self._memory: Final = memory
        self._leases: Final = leases

    @property
    def committed(self) -> tuple[int, ...]:
        """Committed bytes of each segment; all 0 while asleep."""
        return self._memory.committed

    def registrable(self) -> tuple[RegistrableSegment, ...]:
        """What a connector may register: one descriptor per allocation run of each committed segment, by address.

        Growth appends to each segment's descriptors and leaves those before as they were, but that the last becomes
        longer where growth goes on in its allocation.
        """
        with self._region.gate.enter("registrable"):
            self._check_open("registrable")
            return tuple(self._memory.registrable())

    def check(self, segment: RegistrableSegment) -> None:
        """See that a descriptor still describes this tensor's memory.

        Raises
        ------
        StaleSegment
            The tensor has given memory back since the descriptor was made, even if other memory is there now.
        """
        if not isinstance(segment, RegistrableSegment):
            raise ConfigError("segment", segment, "must be a RegistrableSegment of this tensor")
        with self._region.gate.enter("check"):
            inside = (
                self.base_address <= segment.base and segment.base + segment.nbytes <= self.base_address + self.capacity
            )
            if segment.generation != self.generation or self._region.state is not State.COMMITTED or not inside:
                raise StaleSegment(
                    f"{segment.nbytes} bytes at {segment.base:#x} were described in generation {segment.generation}; "
                    f"{self!r} is in generation {self.generation}. Take registrable() again and register that",
                    owners=tuple(lease.owner for lease in self._leases.on(segment.segment_index)),
                )

    def lease(
        self, i: int, owner: str, on_revoke: Callable[[RegistrationLease], object] | None = None
    ) -> RegistrationLease:
        """Promise `owner` that what segment `i` has committed now stays as it is, until the lease is released.

        Growth is allowed meanwhile, and so is everything that touches no granule of the leased bytes.

        Parameters
        ----------
        i : int
        owner : str
            Named in every refusal.
        on_revoke : callable, optional
            Called with the lease by ``revoke=True``, before anything is touched. It must have let go of the memory
            when it returns; an exception is a refusal. A lease without one can only be released by its owner.

        Raises
        ------
        StateError
            Segment `i` has nothing committed, or the tensor is asleep or closed.
        """
        index = self._segments.index(i)
        _check_owner(owner)
        if on_revoke is not None and not callable(on_revoke):
            raise ConfigError("on_revoke", on_revoke, "must be callable")
        with self._region.gate.enter("lease"):
            self._region.advance(Event.LEASE)
            if not (nbytes := self._memory.committed_of(index)):
                raise StateError(
                    f"segment {index} of {self!r} has nothing committed; commit before you lease",
                    state=self.state,
                    event=Event.LEASE.value,
                )
            start = self.segment_offsets[index]
            lease = RegistrationLease(
                self._leases,
                owner=owner,
                segment_index=index,
                start=start,
                address=self.base_address + start,
                nbytes=nbytes,
                generation=self.generation,
                on_revoke=on_revoke,
            )
            self._leases.take(lease)
            return lease

    def check_leases(self, *, revoke: bool = False) -> None:
        """See that nothing is leased, before something is done that cannot be taken back.

        Parameters
        ----------
        revoke : bool
            Make owners let go first, by their callbacks.

        Raises
        ------
        LeaseError
            Something is leased; names the owners.
        """
        everything = [(0, self.capacity)]
        if revoke:
            self._leases.revoke(everything)
        self._leases.guard(everything)

    # Handing memory to others ---------------------------------------------------------------------------------------

    def export(self, what: int | RegistrableSegment, kind: HandleType | None = None) -> ExportedMemory:
        """A handle by which another process imports the allocation behind a piece of this tensor.

        Made when it is asked for, and the caller's to close. An importer maps the whole allocation: `handle_nbytes`
        says how much that is, and `offset` where the piece begins in it.

        Parameters
        ----------
        what : int or RegistrableSegment
            A segment that lies in one allocation, or one of `registrable`.
        kind : {"posix_fd", "fabric"}, optional
            By default what the allocation has, a file descriptor first.

        Raises
        ------
        StaleSegment
            The descriptor's memory has been given back since.
        StateError
            The segment has nothing committed, or the tensor is asleep or closed.
        ConfigError
            The segment lies in several allocations.
        DriverUnavailable
            The memory has no handle of that kind; says what was lost when it was tried, and what helps (D9).
        """
        if kind is not None and kind not in _KINDS:
            raise ConfigError("kind", kind, f"must be one of {', '.join(_KINDS)}")
        with self._region.gate.enter("export"):
            segment = self._exportable(what)
            chosen = kind or next((each for each in _KINDS if each in segment.handle_types), None)
            if chosen is None:
                raise DriverUnavailable(
                    f"{segment.nbytes} bytes at {segment.base:#x} have no shareable handle",
                    cure="; ".join(self.driver.losses) or "`vmmcache probe` says which handle types the device has",
                    driver=self.driver.name,
                    call="export_handle",
                )
            shared = self._region.export(segment.base - self.base_address, chosen)
            return ExportedMemory(
                shared,
                kind=chosen,
                address=segment.base,
                nbytes=segment.nbytes,
                offset=segment.allocation_offset,
                handle_nbytes=segment.allocation_nbytes,
                allocation_id=segment.allocation_id,
            )

    def export_dmabuf(self, what: int | RegistrableSegment) -> ExportedMemory:
        """A dma-buf descriptor of a piece of this tensor, rounded out to whole pages of the host. Yours to close.

        Close it after the registration that was made of it is gone, and before memory is given back (C5).

        Parameters and errors are those of `export`; DriverUnavailable where the platform has no dma-buf of such memory.
        """
        with self._region.gate.enter("export_dmabuf"):
            segment = self._exportable(what)
            start, stop = (segment.base - self.base_address, segment.base - self.base_address + segment.nbytes)
            first, beyond = align_down(start, mmap.PAGESIZE), align_up(stop, mmap.PAGESIZE)
            return ExportedMemory(
                self._region.export_dmabuf(first, beyond),
                kind="dma_buf",
                address=segment.base,
                nbytes=segment.nbytes,
                offset=start - first,
                handle_nbytes=beyond - first,
                allocation_id=0,
            )

    def _exportable(self, what: int | RegistrableSegment) -> RegistrableSegment:
        if isinstance(what, RegistrableSegment):
            self.check(what)
            return what
        index = self._segments.index(what)
        self._region.advance(Event.LEASE)
        pieces = [piece for piece in self._memory.registrable() if piece.segment_index == index]
        if not pieces:
            raise StateError(
                f"segment {index} of {self!r} has nothing committed; commit before you export",
                state=self.state,
                event="export",
            )
        if len(pieces) > 1:
            raise ConfigError(
                "what",
                what,
                f"segment {index} lies in {len(pieces)} allocations; export each of registrable(), or "
                "commit(..., defragment=True) first",
            )
        return pieces[0]


def _check_owner(owner: object) -> None:
    if not isinstance(owner, str) or not owner:
        raise ConfigError("owner", owner, "must be a name that refusals can show")
