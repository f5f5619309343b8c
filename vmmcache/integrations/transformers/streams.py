"""How rows of keys and values divide into the segments of one tensor. Pure arithmetic.

A *row* is all bytes of one token in one stream (keys, values), of the whole batch. Rows of a stream stand one after the
other, so that appending is writing behind the last, and the first n tokens are a prefix in memory.
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
    """Of one row, the batch first."""
    dtype: torch.dtype
    row: int
    """Bytes of one row; at least 1, also where a row has no elements."""
    base: int
    """Offset of row 0 in the tensor."""
    first: int
    """Index of its first segment."""
    count: int
    """Its segments."""
    segment: int
    """Bytes of each."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All streams of a layer, one behind the other."""

    streams: tuple[Stream, ...]
    granule: int
    windowed: bool

    @property
    def sizes(self) -> list[int]:
        """Of all segments."""
        return [stream.segment for stream in self.streams for _ in range(stream.count)]

    def targets(self, first: int, stop: int, least: Sequence[int], step: int) -> tuple[list[int], int]:
        """Bytes for every segment so that rows from `first` to `stop` are backed, and `stop` or how much further.

        A prefix grows by whole `step`, and by an eighth more than it needs, at most 16 `step`: commits become rare,
        and what is unused stays bounded. It does not shrink below `least`. With 0 for `step` it has the granules that
        it needs. A windowed stream has whole segments.
        """
        targets = [0] * len(least)
        ready = []
        for stream in self.streams:
            if self.windowed:
                low, high = first * stream.row // stream.segment, -(-stop * stream.row // stream.segment)
                targets[stream.first + low : stream.first + high] = [stream.segment] * (high - low)
                ready.append(high * stream.segment // stream.row)
            else:
                need = stop * stream.row
                ahead = min(need // 8, 16 * step)
                target = min(align_up(need + ahead, step or self.granule), stream.segment)
                targets[stream.first] = max(target, least[stream.first])
                ready.append(targets[stream.first] // stream.row)
        return targets, min(ready)


def lay_out(
    rows: Sequence[tuple[tuple[int, ...], torch.dtype]], max_length: int, granule: int, window: int | None
) -> Layout:
    """Divide a tensor for `max_length` rows of each stream.

    Without a window, each stream is one segment that grows. With a window of that many rows, each is many segments of
    the same size, which come and go.
    """
    widths = [max(1, math.prod(shape) * dtype.itemsize) for shape, dtype in rows]
    unit = 0
    if window is not None:
        least = max(-(-window // PARTS), -(-max_length // MOST_SEGMENTS))
        unit = align_up(least * max(widths), granule)
    streams: list[Stream] = []
    base = first = 0
    for (shape, dtype), width in zip(rows, widths, strict=True):
        segment = unit or align_up(max_length * width, granule)
        count = -(-max_length * width // segment)
        streams.append(Stream(shape, dtype, width, base, first, count, segment))
        base += count * segment
        first += count
    return Layout(tuple(streams), granule, window is not None)
