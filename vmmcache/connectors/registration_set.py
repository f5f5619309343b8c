"""Everything of some memory that a connector may register, seen to be fit for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self, overload

from vmmcache.connectors.extents import Extent, Extents
from vmmcache.connectors.registrable import Registrable
from vmmcache.errors import AlignmentError, ConfigError, StaleSegment
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.units import as_count

__all__ = ["RegistrationSet"]


class RegistrationSet(Sequence[RegistrableSegment]):
    """Descriptors that are disjoint, sorted by address, of committed bytes only, with no block in two of them (C1).

    Parameters
    ----------
    segments : iterable of RegistrableSegment
    strides : int or sequence of int, optional
        Bytes of a block, for all segments or for each. Without it blocks are not looked at.
    whose : str
        Named in refusals.

    Raises
    ------
    ConfigError
        Two descriptors share bytes or are out of order: they are not those of one memory.
    AlignmentError
        A block would lie in two registrations. Neither NIXL nor Mooncake on TCP moves it then.
    """

    def __init__(
        self,
        segments: Iterable[RegistrableSegment],
        *,
        strides: int | Sequence[int] | None = None,
        whose: str = "this process",
    ) -> None:
        self._segments = tuple(segments)
        self._strides = strides
        self._whose = whose
        self._extents: Extents | None = None
        _check_order(self._segments)
        if strides is not None:
            _check_blocks(self._segments, strides)

    @classmethod
    def of(cls, memory: Registrable, *, strides: int | Sequence[int] | None = None) -> Self:
        """All that some memory has committed now."""
        return cls(memory.registrable(), strides=strides, whose=f"the memory on {memory.device}")

    @overload
    def __getitem__(self, index: int) -> RegistrableSegment: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RegistrableSegment, ...]: ...
    def __getitem__(self, index: int | slice) -> RegistrableSegment | tuple[RegistrableSegment, ...]:
        return self._segments[index]

    def __len__(self) -> int:
        return len(self._segments)

    def __repr__(self) -> str:
        return f"<RegistrationSet of {len(self)} entries, {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return sum(each.nbytes for each in self._segments)

    @property
    def segments(self) -> tuple[int, ...]:
        """Indices of the segments that have an entry, each once."""
        return tuple(dict.fromkeys(each.segment_index for each in self._segments))

    @property
    def extents(self) -> Extents:
        """Where the bytes are."""
        if self._extents is None:
            self._extents = Extents(
                (Extent(each.base, each.nbytes, each.segment_index, each.logical_offset) for each in self._segments),
                self._whose,
            )
        return self._extents

    def address(self, segment: int, offset: int, nbytes: int) -> int:
        """Address of `nbytes` from `offset` of a segment on; they lie in one entry, or AlignmentError."""
        return self.extents.address(segment, offset, nbytes)

    def beyond(self, earlier: Sequence[RegistrableSegment]) -> RegistrationSet:
        """What there is of each segment behind the bytes of `earlier`: what growth has appended.

        Where growth went on in the allocation of an earlier entry, its new bytes are an entry of their own: the earlier
        one is registered, and must not change.

        Raises
        ------
        StaleSegment
            An earlier entry is not here any more.
        """
        # By address, so that an entry that begins where one of the earlier ones did is found at once.
        here = {each.base: each for each in self._segments}
        ends: dict[int, int] = {}
        for old in earlier:
            new = here.get(old.base) or _around(self._segments, old)
            if new is None or new.allocation_id != old.allocation_id or _end(new) < _end(old):
                raise _stale(old, "is not what is committed there now")
            ends[old.segment_index] = max(ends.get(old.segment_index, 0), old.logical_offset + old.nbytes)
        fresh = (_after(each, ends.get(each.segment_index, 0)) for each in self._segments)
        return RegistrationSet((each for each in fresh if each), strides=self._strides, whose=self._whose)

    def same_as(self, earlier: Sequence[RegistrableSegment]) -> RegistrationSet:
        """The entries of `earlier` again, with the allocations and generation of today.

        Raises
        ------
        StaleSegment
            One of them does not lie, with all its bytes, in one allocation at the same address today.
        """
        here = {each.base: each for each in self._segments}
        again = []
        for old in earlier:
            new = here.get(old.base) or _around(self._segments, old)
            if new is None or _end(new) < _end(old) or new.segment_index != old.segment_index:
                raise _stale(old, "does not lie in one allocation at the same address now")
            # The very entry, or a part of one that has become larger meanwhile.
            again.append(new if new.nbytes == old.nbytes else _part(new, old.base - new.base, old.nbytes))
        return RegistrationSet(again, strides=self._strides, whose=self._whose)


def _check_order(segments: Sequence[RegistrableSegment]) -> None:
    for before, after in pairwise(segments):
        if before.base + before.nbytes > after.base:
            raise ConfigError(
                "segments",
                f"{before.base:#x}, {after.base:#x}",
                "descriptors share bytes or are not sorted by address; give those of one memory, as registrable() does",
            )


def _check_blocks(segments: Sequence[RegistrableSegment], strides: int | Sequence[int]) -> None:
    each_its_own = isinstance(strides, Sequence) and not isinstance(strides, str | bytes)
    wanted = strides if isinstance(strides, Sequence) and each_its_own else [strides]
    sizes = [as_count(f"strides[{index}]", size, minimum=1) for index, size in enumerate(wanted)]
    for each in segments:
        if each_its_own and each.segment_index >= len(sizes):
            raise ConfigError("strides", len(sizes), f"too few: there is a segment {each.segment_index}")
        stride = sizes[each.segment_index if each_its_own else 0]
        if each.logical_offset % stride or each.nbytes % stride:
            raise AlignmentError(
                f"a block of {stride} bytes in segment {each.segment_index} lies in two registrations: an entry has "
                f"{each.nbytes} bytes from offset {each.logical_offset} on. Commit multiples of the least size that is "
                "whole blocks and whole granules, or commit with defragment=True so that the segment is one allocation"
            )


def _around(segments: Sequence[RegistrableSegment], old: RegistrableSegment) -> RegistrableSegment | None:
    """The entry that `old` begins in."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].base <= old.base:
            low = middle + 1
        else:
            high = middle
    found = segments[low - 1] if low else None
    return found if found is not None and old.base < _end(found) else None


def _after(segment: RegistrableSegment, end: int) -> RegistrableSegment | None:
    """What of an entry lies behind the first `end` bytes of its segment."""
    skipped = max(0, end - segment.logical_offset)
    if skipped >= segment.nbytes:
        return None
    return _part(segment, skipped, segment.nbytes - skipped) if skipped else segment


def _part(segment: RegistrableSegment, skipped: int, nbytes: int) -> RegistrableSegment:
    end = skipped + nbytes
    return replace(
        segment,
        base=segment.base + skipped,
        nbytes=nbytes,
        logical_offset=segment.logical_offset + skipped,
        allocation_offset=segment.allocation_offset + skipped,
        whole=False,
        # A border inside an entry may lie on a granule, but whether it does is not known here.
        aligned=segment.aligned and not skipped and end == segment.nbytes,
    )


def _end(segment: RegistrableSegment) -> int:
    return segment.base + segment.nbytes


def _stale(segment: RegistrableSegment, problem: str) -> StaleSegment:
    return StaleSegment(
        f"{segment.nbytes} bytes at {segment.base:#x} of segment {segment.segment_index} were registered, and that "
        f"{problem}. Close the registration and make a new one"
    )
