"""Byte ranges: ``(start, stop)``, half open, in ascending order. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

__all__ = ["Range", "inside", "merged", "overlapping", "subtract"]

Range = tuple[int, int]

_stop = itemgetter(1)


def overlapping(ranges: Sequence[Range], start: int, stop: int) -> Iterator[Range]:
    """Those of `ranges` (ascending by start and by stop) that share a byte with ``[start, stop)``, whole.

    >>> list(overlapping([(0, 4), (4, 8), (8, 12)], 3, 8))
    [(0, 4), (4, 8)]
    """
    if start >= stop:
        return
    for place in range(bisect_right(ranges, start, key=_stop), len(ranges)):
        if ranges[place][0] >= stop:
            return
        yield ranges[place]


def inside(ranges: Sequence[Range], start: int, stop: int) -> Iterator[Range]:
    """The parts of `ranges` that lie in ``[start, stop)``.

    >>> list(inside([(0, 4), (6, 8)], 2, 7))
    [(2, 4), (6, 7)]
    """
    for lower, upper in overlapping(ranges, start, stop):
        yield max(lower, start), min(upper, stop)


def subtract(ranges: Iterable[Range], holes: Sequence[Range]) -> list[Range]:
    """The parts of `ranges` that lie in none of `holes` (disjoint).

    >>> subtract([(0, 10)], [(2, 4), (8, 12)])
    [(0, 2), (4, 8)]
    """
    rest = []
    for start, stop in ranges:
        for lower, upper in inside(holes, start, stop):
            if start < lower:
                rest.append((start, lower))
            start = upper
        if start < stop:
            rest.append((start, stop))
    return rest


def merged(ranges: Iterable[Range]) -> list[Range]:
    """One range for each group of `ranges` that share bytes; ranges that only touch stay apart.

    >>> merged([(0, 4), (2, 6), (6, 8)])
    [(0, 6), (6, 8)]
    """
    result: list[Range] = []
    for start, stop in ranges:
        if result and start < result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], stop)
        else:
            result.append((start, stop))
    return result
