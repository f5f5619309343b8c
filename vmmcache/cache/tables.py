"""Block tables: for each block of a request, in order, its slot, or -1.

A change of a request is a change of the ranges of blocks that have slots. It is made in two steps, so that what one
life cycle gives up another of the same pool group can have.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from vmmcache.cache.block_rules import NO_BLOCKS, Ranges
from vmmcache.cache.free_list import SlotArray
from vmmcache.memory.ranges import Range, subtract

__all__ = ["NO_SLOT", "chosen", "empty_tables", "occupy", "padded", "put_back", "show", "there", "vacate"]

NO_SLOT: Final = -1
"""What stands in a block table where a block has no slot."""

_NONE: Final = array("i", [NO_SLOT])


def empty_tables(number: int) -> list[SlotArray]:
    """So many tables without blocks."""
    return [array("i") for _ in range(number)]


def vacate(table: SlotArray, before: Ranges, after: Ranges, slots: SlotArray) -> SlotArray:
    """Take the slots of blocks that are in `before` and not in `after` out of `table`, and give them back in `slots`.

    Each is in `slots` before it is out of `table`, so that `put_back` finds it wherever this is interrupted.
    """
    for start, stop in _beyond(before, after):
        slots.extend(table[start:stop])
        table[start:stop] = _NONE * (stop - start)
    return slots


def occupy(table: SlotArray, before: Ranges, after: Ranges, take: Callable[[int], SlotArray]) -> None:
    """Put slots in for blocks that are in `after` and not in `before`, and lengthen `table` as far as that needs."""
    for start, stop in _beyond(after, before):
        if start == len(table):
            table.extend(take(stop - start))
            continue
        if stop > len(table):
            table.extend(_NONE * (stop - len(table)))
        table[start:stop] = take(stop - start)


def put_back(table: SlotArray, before: Ranges, after: Ranges, slots: SlotArray) -> None:
    """Make undone what `vacate` (into `slots`) and `occupy` did, wherever they were interrupted."""
    for start, stop in _beyond(after, before):
        stop = min(stop, len(table))
        if start < stop:
            table[start:stop] = _NONE * (stop - start)
    at = 0
    for start, stop in _beyond(before, after):
        if at < len(slots):
            table[start:stop] = slots[at : at + stop - start]
            at += stop - start


def there(table: SlotArray, within: Ranges) -> Ranges:
    """The blocks in `within` that have a slot."""
    found = []
    for start, stop in within:
        first = None
        for block in range(start, min(stop, len(table)) + 1):
            has = block < min(stop, len(table)) and table[block] != NO_SLOT
            if has and first is None:
                first = block
            elif not has and first is not None:
                found.append((first, block))
                first = None
    return tuple(found)


def chosen(table: SlotArray, ranges: Ranges) -> SlotArray:
    """The slots of `ranges`."""
    if len(ranges) == 1:
        return table[ranges[0][0] : ranges[0][1]]
    slots: SlotArray = array("i")
    for start, stop in ranges:
        slots.extend(table[start:stop])
    return slots


def show(table: SlotArray, before: Ranges, after: Ranges, source: SlotArray) -> None:
    """Have the entries of `source` for the blocks in `after`, and none for those that are only in `before`."""
    for start, stop in _beyond(before, after):
        table[start:stop] = _NONE * (stop - start)
    for start, stop in _beyond(after, before):
        if stop > len(table):
            table.extend(_NONE * (stop - len(table)))
        table[start:stop] = source[start:stop]


def padded(table: SlotArray, start: int, stop: int) -> SlotArray:
    """A copy of the entries [start, stop), with -1 for those beyond the end of `table`."""
    part = table[start:stop]
    part.extend(_NONE * (max(0, stop - start) - len(part)))
    return part


def _beyond(these: Ranges, those: Ranges) -> Ranges | list[Range]:
    """The parts of `these` that are in none of `those`."""
    if not those or not these:
        return these
    if these[:-1] != those[:-1]:
        return subtract(these, those)
    # What a step of decoding does: the end moves on, and the front of a window.
    (start, stop), (low, high) = these[-1], those[-1]
    if high <= start or stop <= low:
        return these[-1:]
    if low <= start:
        return ((high, stop),) if high < stop else NO_BLOCKS
    return ((start, low), (high, stop)) if high < stop else ((start, low),)
