"""Where the bytes of segments are, by segment and offset or by address: of ours, and of a peer's memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from vmmcache.errors import AlignmentError, ConfigError

__all__ = ["Extent", "Extents"]


class Extent(NamedTuple):
    """One registered piece of a segment. All in bytes."""

    base: int
    """Address of the first byte."""
    nbytes: int
    segment: int
    offset: int
    """Where the first byte is in its segment."""


class Extents:
    """Disjoint pieces of memory, by address.

    Parameters
    ----------
    extents : iterable of Extent
        In any order.
    whose : str
        Named in refusals.

    Raises
    ------
    ConfigError
        Two share a byte, or one is empty.
    """

    def __init__(self, extents: Iterable[Extent], whose: str) -> None:
        self._extents = sorted(extents)
        self._bases = [each.base for each in self._extents]
        self._whose = whose
        self._segments: dict[int, list[Extent]] | None = None
        for each in self._extents:
            if each.nbytes <= 0:
                raise ConfigError("segments", each, f"{whose} has an empty piece")
        for before, after in pairwise(self._extents):
            if before.base + before.nbytes > after.base:
                raise ConfigError("segments", (before, after), f"{whose} has two pieces that share bytes")

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)

    def address(self, segment: int, offset: int, nbytes: int) -> int:
        """Address of `nbytes` from `offset` of a segment on, which lie in one piece.

        Raises
        ------
        ConfigError
            Not all of those bytes are registered.
        AlignmentError
            They are, in more than one piece. No transfer may span two.
        """
        if self._segments is None:
            self._segments = {}
            for each in sorted(self._extents, key=itemgetter(2, 3)):
                self._segments.setdefault(each.segment, []).append(each)
        pieces = self._segments.get(segment, [])
        place = bisect_right(pieces, offset, key=itemgetter(3)) - 1
        if place >= 0 and nbytes > 0 and offset + nbytes <= pieces[place].offset + pieces[place].nbytes:
            return pieces[place].base + offset - pieces[place].offset
        what = f"bytes {offset} to {offset + nbytes} of segment {segment}"
        end = sum(each.nbytes for each in pieces)
        if not 0 <= offset < offset + nbytes <= end:
            raise ConfigError(
                "offset", offset, f"{self._whose} has registered {end} bytes of segment {segment}: {what}"
            )
        border = pieces[place].offset + pieces[place].nbytes
        raise AlignmentError(
            f"{what} lie in two registrations of {self._whose}, with the border at {border}; no transfer may span "
            "both. Commit whole blocks that end on a granule, or split the transfer there"
        )

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether all of `nbytes` from an address on lie in one piece."""
        place = bisect_right(self._bases, address) - 1
        if place < 0 or nbytes <= 0:
            return False
        base, size, _, _ = self._extents[place]
        return address + nbytes <= base + size

    def first_outside(self, spans: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
        """The first of many (address, bytes) that does not lie in one piece; None where all do."""
        start = stop = 0
        for span in spans:
            address, nbytes = span
            if not (start <= address and nbytes > 0 and address + nbytes <= stop):
                # Neighbours mostly lie in the same piece, so that one is looked at before all others.
                if not self.holds(address, nbytes):
                    return span
                start, size, _, _ = self._extents[bisect_right(self._bases, address) - 1]
                stop = start + size
        return None

    def require(self, address: int, nbytes: int) -> None:
        """Refuse bytes that do not all lie in one piece, with AlignmentError where they lie in several.

        Raises
        ------
        ConfigError
            A byte of it is in no piece.
        """
        if self.holds(address, nbytes):
            return
        at = address
        while (place := bisect_right(self._bases, at) - 1) >= 0 and at < address + nbytes:
            base, size, _, _ = self._extents[place]
            if not base <= at < base + size:
                break
            at = base + size
        what = f"{nbytes} bytes at {address:#x}"
        if nbytes > 0 and at >= address + nbytes:
            raise AlignmentError(f"{what} lie in more than one registration of {self._whose}; no transfer may span two")
        raise ConfigError("address", hex(address), f"{self._whose} has not registered all of {what}, from {at:#x} on")
