"""What is mapped, by offset. One entry per allocation, however many granules it spans; no driver in here."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from vmmcache.driver import Mapping
from vmmcache.memory.ranges import Range, inside

__all__ = ["MappingTable", "extent", "parts"]

_offset = attrgetter("offset")
_FEW: Final = 16
"""So many are looked up one by one; more are sieved out in one pass."""


def extent(mapping: Mapping) -> Range:
    """The bytes of the region that a mapping backs."""
    return mapping.offset, mapping.offset + mapping.nbytes


def parts(mapping: Mapping, spans: Sequence[Range]) -> Iterator[Range]:
    """The parts of `spans` (ascending) that a mapping backs."""
    return inside(spans, *extent(mapping))


class MappingTable:
    """Disjoint mappings of one reservation, sorted by offset."""

    def __init__(self) -> None:
        self._mappings: list[Mapping] = []

    def __iter__(self) -> Iterator[Mapping]:
        return iter(self._mappings)

    def __len__(self) -> int:
        return len(self._mappings)

    def insert(self, mapping: Mapping) -> None:
        """Enter one mapping."""
        insort(self._mappings, mapping, key=_offset)

    def remove(self, mappings: Iterable[Mapping]) -> None:
        """Take mappings out; those that are not in are passed over."""
        gone = {mapping.allocation.id: mapping.offset for mapping in mappings}
        if len(gone) > _FEW:
            self._mappings = [mapping for mapping in self._mappings if mapping.allocation.id not in gone]
            return
        for allocation_id, offset in gone.items():
            place = bisect_left(self._mappings, offset, key=_offset)
            if place < len(self._mappings) and self._mappings[place].allocation.id == allocation_id:
                del self._mappings[place]

    def between(self, start: int, stop: int) -> list[Mapping]:
        """Mappings that share a byte with [start, stop), by offset."""
        first = bisect_right(self._mappings, start, key=_offset)
        if first and extent(self._mappings[first - 1])[1] > start:
            first -= 1
        return self._mappings[first : bisect_left(self._mappings, stop, key=_offset)]

    def touched_by(self, runs: Iterable[Range]) -> list[Mapping]:
        """Mappings that share a byte with any of `runs` (ascending), by offset, each once."""
        found = {mapping.offset: mapping for run in runs for mapping in self.between(*run)}
        return list(found.values())

    def along(self, runs: Iterable[Range]) -> Iterator[tuple[Range, Mapping]]:
        """Each of `runs` (ascending, disjoint) with each mapping that shares a byte with it, in one pass."""
        mappings, place = self._mappings, 0
        for run in runs:
            start, stop = run
            while place < len(mappings) and extent(mappings[place])[1] <= start:
                place += 1
            for at in range(place, len(mappings)):
                if mappings[at].offset >= stop:
                    break
                place = at  # the last of a run may be the first of the next
                yield run, mappings[at]

    def holes(self, start: int, stop: int) -> Iterator[Range]:
        """Maximal ranges of [start, stop) that no mapping backs, as the table was when the first was asked for."""
        for mapping in self.between(start, stop):
            if start < mapping.offset:
                yield start, mapping.offset
            start = mapping.offset + mapping.nbytes
        if start < stop:
            yield start, stop
