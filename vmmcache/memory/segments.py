"""How a tensor's bytes divide into segments, and which granules and allocations the segments need. Pure arithmetic."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vmmcache.errors import ConfigError
from vmmcache.memory.ranges import Range, merged
from vmmcache.units import ADDRESSES, align_down, align_up, as_count

__all__ = ["Segments", "Unit"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Segments that can be rebuilt only together, because allocations, old or new, span them."""

    runs: tuple[Range, ...]
    """The allocations that it is to have."""
    indices: tuple[int, ...]
    """Its segments."""
    exact: bool
    """Whether it has exactly those allocations already."""


class Segments:
    """Sizes and places of segments; each grows as a prefix of its place.

    Parameters
    ----------
    capacity : int
        Bytes of all segments together.
    segments : int or sequence of int
        How many equal ones, or the size of each in bytes.
    granule : int
    """

    def __init__(self, capacity: int, segments: int | Sequence[int], granule: int) -> None:
        self.sizes = _sizes(capacity, segments)
        self.capacity = sum(self.sizes)
        self.granule = granule
        self.offsets = tuple(itertools.accumulate(self.sizes, initial=0))[:-1]

    def __len__(self) -> int:
        return len(self.sizes)

    def index(self, index: object) -> int:
        """Check a segment's index."""
        return as_count("segment", index, maximum=len(self) - 1, unit="(an index)")

    def targets(self, nbytes: object) -> tuple[int, ...]:
        """Bytes for each segment, from one number for all or one for each."""
        if isinstance(nbytes, Sequence) and not isinstance(nbytes, str | bytes):
            if len(nbytes) != len(self):
                raise ConfigError("nbytes", nbytes, f"{len(nbytes)} sizes for {len(self)} segments")
            return tuple(
                as_count(f"nbytes[{index}]", value, maximum=size)
                for index, (value, size) in enumerate(zip(nbytes, self.sizes, strict=True))
            )
        return (as_count("nbytes", nbytes, maximum=min(self.sizes)),) * len(self)

    def span(self, index: int, nbytes: int) -> Range:
        """The granules that the first `nbytes` (more than 0) of a segment need."""
        start = self.offsets[index]
        return align_down(start, self.granule), align_up(start + nbytes, self.granule)

    def spans(self, committed: Sequence[int]) -> list[Range]:
        """The granules of every segment that has bytes. Neighbours may share one."""
        return [self.span(index, nbytes) for index, nbytes in enumerate(committed) if nbytes]

    def between(
        self, lower: Sequence[int] | None, upper: Sequence[int], indices: Iterable[int] | None = None
    ) -> list[Range]:
        """The bytes from `lower` (None: the first) to `upper`, where that is more, of all segments or of `indices`."""
        return [
            (self.offsets[index] + low, self.offsets[index] + upper[index])
            for index in (range(len(self)) if indices is None else indices)
            if (low := lower[index] if lower else 0) < upper[index]
        ]

    def backed(self, committed: Sequence[int], start: int) -> int:
        """The first byte from `start` on that is not committed."""
        place = start
        for index in range(bisect.bisect_right(self.offsets, start) - 1, len(self)):
            end = self.offsets[index] + committed[index]
            if place >= end:
                break
            place = end
            if committed[index] < self.sizes[index]:
                break
        return place

    def units(self, committed: Sequence[int], extents: Callable[[Range], Sequence[Range]]) -> Iterator[Unit]:
        """Group segments for a rebuild that gives each of them one allocation.

        A run is the granules of one segment, or of neighbours that share a granule; runs that one old allocation spans
        belong together. `extents` gives the old allocations that a range touches.
        """
        indices = [index for index, nbytes in enumerate(committed) if nbytes]
        place = 0
        pending: list[tuple[Range, list[Range], list[int]]] = []
        for run in merged(self.spans(committed)):
            members = []
            while place < len(indices) and self.offsets[indices[place]] < run[1]:
                members.append(indices[place])
                place += 1
            old = list(extents(run))
            if pending and not (old and pending[-1][1] and old[0] == pending[-1][1][-1]):
                yield _unit(pending)
                pending = []
            pending.append((run, old, members))
        if pending:
            yield _unit(pending)


def _unit(parts: list[tuple[Range, list[Range], list[int]]]) -> Unit:
    return Unit(
        runs=tuple(run for run, _, _ in parts),
        indices=tuple(index for _, _, members in parts for index in members),
        exact=all(old == [run] for run, old, _ in parts),
    )


def _sizes(capacity: int, segments: int | Sequence[int]) -> tuple[int, ...]:
    capacity = as_count("capacity", capacity, minimum=1, maximum=ADDRESSES // 2)
    if isinstance(segments, Sequence) and not isinstance(segments, str | bytes):
        sizes = tuple(as_count(f"segments[{index}]", size, minimum=1) for index, size in enumerate(segments))
        if sum(sizes) != capacity:
            raise ConfigError("segments", segments, f"sizes sum to {sum(sizes)}, not to the capacity {capacity}")
        return sizes
    count = as_count("segments", segments, minimum=1, unit="segments")
    size, rest = divmod(capacity, count)
    if rest or not size:
        raise ConfigError(
            "capacity", capacity, f"does not divide into {count} equal segments; give their sizes instead"
        )
    return (size,) * count
