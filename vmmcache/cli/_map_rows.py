"""An address-space map in rows, for the terminal and for the picture alike, however many segments there are.

A row is one segment where there are few, else as many neighbours as it takes to have few rows. Where a row has few
ranges, it is drawn range by range; where it has many, by how much of each of equal parts they cover.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from vmmcache.memory.atlas import TensorMap
from vmmcache.memory.ranges import Range, merged

__all__ = ["Row", "covered", "rows"]

_FEW: Final = 48
"""Most ranges of a kind that are drawn each by itself."""


class Row(NamedTuple):
    """Some neighbouring segments. Ranges are offsets from the tensor's base, ascending and disjoint."""

    first: int
    last: int
    """Numbers of its segments, both included; -1 where the segments are not known."""
    start: int
    stop: int
    committed_bytes: int
    mapped_bytes: int
    leased_bytes: int
    least: int
    most: int
    """Bytes committed in the segments that have least and most."""
    allocations: int
    """That begin in this row."""
    committed: list[Range]
    mapped: list[Range]
    leased: list[Range]

    @property
    def nbytes(self) -> int:
        """Bytes of addresses."""
        return self.stop - self.start

    @property
    def few(self) -> bool:
        """Whether there are few enough ranges to draw each; those of `mapped` are allocations."""
        return max(len(self.committed), len(self.mapped), len(self.leased)) <= _FEW

    @property
    def name(self) -> str:
        """Which segments."""
        if self.first < 0:
            return "?"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def rows(tensor: TensorMap, most: int) -> list[Row]:
    """The map of a tensor in at most `most` rows."""
    # What rounding the reservation to granules has added belongs to no segment, and nothing can be there but the end
    # of an allocation.
    offsets = [*tensor.offsets, sum(size for size, _ in tensor.segments)] if tensor.segments else [0, tensor.reserved]
    sizes = list(tensor.segments) or [(tensor.reserved, 0)]
    offsets[-1] = max(offsets[-1], tensor.reserved)
    step = -(-len(sizes) // most)
    committed = [(start, start + nbytes) for start, (_, nbytes) in zip(offsets, sizes, strict=False) if nbytes]
    mapped = [(start, start + nbytes) for start, nbytes in tensor.allocations]
    leased = merged(sorted((lease.offset, lease.offset + lease.nbytes) for lease in tensor.leases))
    found = []
    for first in range(0, len(sizes), step):
        beyond = min(first + step, len(sizes))
        start, stop = offsets[first], offsets[beyond]
        parts = [_clipped(ranges, start, stop) for ranges in (committed, mapped, leased)]
        amounts = [nbytes for _, nbytes in sizes[first:beyond]]
        found.append(
            Row(
                first=first if tensor.segments else -1,
                last=beyond - 1 if tensor.segments else -1,
                start=start,
                stop=stop,
                committed_bytes=_length(parts[0]),
                mapped_bytes=_length(parts[1]),
                leased_bytes=_length(parts[2]),
                least=min(amounts),
                most=max(amounts),
                allocations=bisect_left(mapped, (stop, 0)) - bisect_left(mapped, (start, 0)),
                committed=parts[0],
                mapped=parts[1],
                leased=parts[2],
            )
        )
    return found


def covered(ranges: Sequence[Range], start: int, stop: int, cells: int) -> list[int]:
    """How many bytes of each of `cells` equal parts of [start, stop) the ranges cover."""
    borders = [start + (stop - start) * cell // cells for cell in range(cells + 1)]
    sums = [0, *accumulate(high - low for low, high in ranges)]

    def before(at: int) -> int:
        place = bisect_right(ranges, (at, at)) if ranges else 0
        # All ranges up to there, less what of the last one lies beyond.
        return sums[place] - (max(0, ranges[place - 1][1] - at) if place else 0)

    amounts = [before(border) for border in borders]
    return [after - earlier for earlier, after in pairwise(amounts)]


def _clipped(ranges: Sequence[Range], start: int, stop: int) -> list[Range]:
    first = max(0, bisect_right(ranges, (start, start)) - 1)
    last = bisect_left(ranges, (stop, stop))
    clipped = ((max(low, start), min(high, stop)) for low, high in ranges[first:last])
    return [(low, high) for low, high in clipped if low < high]


def _length(ranges: Iterable[Range]) -> int:
    return sum(high - low for low, high in ranges)
