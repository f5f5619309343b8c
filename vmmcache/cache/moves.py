"""The order in which slots are moved, so that none is overwritten before it was read. Pure arithmetic."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.units import as_count

__all__ = ["Move", "in_order", "runs"]


class Move(NamedTuple):
    """`length` neighbouring slots that go elsewhere as one piece; source and target do not overlap."""

    source: int
    target: int
    length: int


def in_order(pairs: Iterable[tuple[int, int]], slots: int) -> list[Move]:
    """Moves to do one after the other for what `pairs` of source and target mean all at once.

    A slot may be the target of one pair and the source of another: it is read before it is overwritten. Pairs that lie
    side by side become one move.

    Raises
    ------
    ConfigError
        A number is no slot, a slot is the target of two pairs, or pairs go round in a circle: none of its targets is
        free.

    >>> in_order([(7, 5), (5, 2), (8, 6)], slots=9)
    [Move(source=5, target=2, length=1), Move(source=7, target=5, length=2)]
    """
    source_of: dict[int, int] = {}
    readers: dict[int, int] = {}
    for number, (source, target) in enumerate(pairs):
        source = as_count(f"pairs[{number}][0]", source, maximum=slots - 1, unit="(a slot)")
        target = as_count(f"pairs[{number}][1]", target, maximum=slots - 1, unit="(a slot)")
        if target in source_of:
            raise ConfigError(f"pairs[{number}]", (source, target), f"slot {target} is the target of two pairs")
        source_of[target] = source
        if source != target:
            readers[source] = readers.get(source, 0) + 1
    source_of = {target: source for target, source in source_of.items() if source != target}
    # Lowest target first, so that neighbours follow one another.
    ready = sorted(target for target in source_of if target not in readers)
    moves: list[Move] = []
    while ready:
        target = heapq.heappop(ready)
        source = source_of.pop(target)
        _append(moves, source, target)
        readers[source] -= 1
        if not readers[source] and source in source_of:
            heapq.heappush(ready, source)
    if source_of:
        raise ConfigError("pairs", sorted(source_of.items()), "these targets are read by one another in a circle")
    return moves


def _append(moves: list[Move], source: int, target: int) -> None:
    if moves:
        last = moves[-1]
        adjacent = source == last.source + last.length and target == last.target + last.length
        # A longer piece would overlap itself.
        if adjacent and last.length < abs(target - source):
            moves[-1] = last._replace(length=last.length + 1)
            return
    moves.append(Move(source, target, 1))


def runs(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of neighbours in a list of slots: place in the list, first slot, how many.

    >>> list(runs([4, 5, 6, 2, 9, 8]))
    [(0, 4, 3), (3, 2, 1), (4, 9, 1), (5, 8, 1)]
    """
    place = 0
    while place < len(slots):
        count = 1
        while place + count < len(slots) and slots[place + count] == slots[place] + count:
            count += 1
        yield place, slots[place], count
        place += count
