"""How rows of keys and values divide into the segments of one tensor. Pure arithmetic.

A *row* is all bytes that one token has in one *run*: of the whole batch where a stream is one run, of one head where
each head of each sequence has a run. Rows of a run stand one after the other, so that appending is writing behind the
last, and the first n tokens are a prefix in memory. All runs of a stream are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from vmmcache.units import align_up

__all__ = ["Layout", "Stream", "lay_out"]

PARTS: Final = 4
"""Segments of a window, at the least: what a window has left of its oldest one is at most a quarter of it."""
MOST_SEGMENTS: Final = 4096
"""Segments of a stream, at the most: a commit looks at all of them."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Where the rows of one stream are."""

    shape: tuple[int, ...]
    """Of what one token has, the batch first."""
    dtype: torch.dtype
    outer: tuple[int, ...]
    """Dimensions of `shape` that choose a run; none where there is one."""
    row: int
    """Bytes of one row; at least 1, also where a row has no elements."""
    base: int
    """Offset of row 0 of the first run in the tensor."""
    first: int
    """Index of its first segment."""
    count: int
    """Segments of each run."""
    segment: int
    """Bytes of each."""

    @property
    def runs(self) -> int:
        """How many."""
        return math.prod(self.outer)

    @property
    def inner(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[len(self.outer) :]

    @property
    def stride(self) -> int:
        """Bytes from a run to the next."""
        return self.count * self.segment

    @property
    def token(self) -> int:
        """Bytes of one token in all runs."""
        return self.row * self.runs


@dataclass(frozen=True, slots=True)
class Layout:
    """All streams of a layer, one behind the other."""

    streams: tuple[Stream, ...]
    granule: int
    windowed: bool

    @property
    def sizes(self) -> list[int]:
        """Of all segments."""
        return [stream.segment for stream in self.streams for _ in range(stream.runs * stream.count)]

    def targets(self, first: int, stop: int, least: Sequence[int], step: int) -> tuple[list[int], int]:
        """Bytes for every segment so that rows from `first` to `stop` are backed, and `stop` or how much further.

        A run grows by whole `step`, and by an eighth more than it needs, at most 16 `step`: commits become rare,
        and what is unused stays bounded. It does not shrink below `least`. With 0 for `step` it has the granules that
        it needs. A windowed run has whole segments.
        """
        targets: list[int] = []
        ready = []
        for stream in self.streams:
            run = [0] * stream.count
            if self.windowed:
                low, high = first * stream.row // stream.segment, -(-stop * stream.row // stream.segment)
                run[low:high] = [stream.segment] * (high - low)
                ready.append(high * stream.segment // stream.row)
            else:
                need = stop * stream.row
                ahead = min(need // 8, 16 * step)
                target = min(align_up(need + ahead, step or self.granule), stream.segment)
                run[0] = max(target, least[stream.first])
                ready.append(run[0] // stream.row)
            targets += run * stream.runs
        return targets, min(ready)


def lay_out(
    rows: Sequence[tuple[tuple[int, ...], torch.dtype]],
    max_length: int,
    granule: int,
    window: int | None,
    *,
    by_head: bool = False,
) -> Layout:
    """Divide a tensor for `max_length` rows of each run.

    Without a window, each run is one segment that grows. With a window of that many rows, each is many segments of the
    same size, which come and go. By head, all but the last dimension of `rows` choose a run; a stream without elements
    is one run all the same.
    """
    outers: list[tuple[int, ...]] = [shape[:-1] if by_head and math.prod(shape) > 0 else () for shape, _ in rows]
    elements = [math.prod(shape[len(outer) :]) for (shape, _), outer in zip(rows, outers, strict=True)]
    widths = [max(1, count * dtype.itemsize) for (_, dtype), count in zip(rows, elements, strict=True)]
    unit = 0
    if window is not None:
        runs = [math.prod(outer) for outer in outers]
        most = max(1, MOST_SEGMENTS // max(runs))
        least = max(-(-window // PARTS), -(-max_length // most))
        unit = align_up(least * max(widths), granule)
    streams: list[Stream] = []
    base = first = 0
    for (shape, dtype), outer, width in zip(rows, outers, widths, strict=True):
        segment = unit or align_up(max_length * width, granule)
        count = -(-max_length * width // segment)
        stream = Stream(shape, dtype, outer, width, base, first, count, segment)
        streams.append(stream)
        base += stream.runs * stream.stride
        first += stream.runs * count
    return Layout(tuple(streams), granule, window is not None)
