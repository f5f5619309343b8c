"""A system prompt that requests share: its blocks are there once, whoever has them.

A shared block is there as long as any member needs it that is active, or suspended and not evicted: so the member with
the shortest history decides, and a block leaves when it is stale for every one. With its last member the whole prompt
leaves; the next member gets new blocks, and computes them.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from vmmcache.cache.block_rules import NO_BLOCKS, Ranges, size
from vmmcache.cache.free_list import SlotArray
from vmmcache.cache.tables import occupy, padded, put_back, vacate
from vmmcache.errors import ConfigError
from vmmcache.memory.ranges import subtract

if TYPE_CHECKING:
    from vmmcache.cache.ledger import Ledger

__all__ = ["UNKNOWN", "Histories", "Prefix", "PrefixChange", "repin", "replace", "shed"]

UNKNOWN: Final = -1
"""In place of a shortest history: what is there is not all that it needs."""


class Histories:
    """Lengths of which the shortest is asked for; each change costs a logarithm of how many there are."""

    __slots__ = ("_counts", "_heap", "number")

    _counts: dict[int, int]
    _heap: list[int]
    number: int

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self._counts = {} if counts is None else counts
        self._heap = sorted(self._counts)
        self.number = sum(self._counts.values())

    def add(self, history: int) -> None:
        """Put one in."""
        counts = self._counts
        self.number += 1
        if history in counts:
            counts[history] += 1
            return
        counts[history] = 1
        if len(self._heap) > 2 * len(counts) + 64:
            # Lengths that left in the middle stay in the heap until they come to its top.
            self._heap = sorted(counts)
        else:
            heapq.heappush(self._heap, history)

    def remove(self, history: int) -> None:
        """Take one out that is in."""
        self.number -= 1
        left = self._counts[history] - 1
        if left:
            self._counts[history] = left
        else:
            del self._counts[history]

    @property
    def shortest(self) -> int | None:
        """The shortest that is in; None where none is."""
        heap = self._heap
        while heap and heap[0] not in self._counts:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def become(self, histories: Iterable[int]) -> None:
        """Have these in it, and no others."""
        self._counts = dict(Counter(histories))
        self._heap = sorted(self._counts)
        self.number = sum(self._counts.values())

    def copy(self) -> Histories:
        """Another one with the same."""
        return Histories(self._counts.copy())


class Prefix:
    """A shared prompt of `Slots`, made by `Slots.share` and given to `Slots.allocate`.

    It takes slots with its first member and gives them back with its last. Keep it as long as you like.
    """

    __slots__ = (
        "__weakref__",
        "_active",
        "_block_count",
        "_held",
        "_kept",
        "_ledger",
        "_pinned",
        "_resident",
        "_settled",
        "_tables",
        "tokens",
    )

    def __init__(self, ledger: Ledger, tokens: int, block_count: int) -> None:
        self.tokens: Final = tokens
        """Tokens that are really shared: whole blocks."""
        self._ledger: Final = ledger
        self._block_count: Final = block_count
        self._active: Final = Histories()
        self._resident: Final = Histories()
        cycles = len(ledger.rules)
        # Where its blocks are, and what that comes to per group: in all, and of that for active members.
        self._kept: list[Ranges] = [NO_BLOCKS] * cycles
        self._tables: Final[list[SlotArray]] = [array("i") for _ in range(cycles)]
        self._held = [0] * ledger.groups
        self._pinned = [0] * ledger.groups
        self._settled: tuple[int | None, int | None] = (None, None)
        ledger.prefixes.add(self)

    def __repr__(self) -> str:
        return f"<Prefix of {self.tokens} tokens, {self.members} members>"

    @property
    def members(self) -> int:
        """Requests that share it and are not evicted."""
        return self._resident.number

    def blocks(self, life_cycle: int) -> SlotArray:
        """The slot of each of its blocks, -1 where it is not there. A copy, like `CacheRequest.blocks`.

        Raises
        ------
        ConfigError
            There is no such life cycle.
        """
        with self._ledger.lock:
            if not 0 <= life_cycle < len(self._tables):
                raise ConfigError("life_cycle", life_cycle, f"the layout has {len(self._tables)}")
            return padded(self._tables[life_cycle], 0, self._block_count)

    def _needed(self, shortest: int | None) -> list[Ranges]:
        """For each life cycle, the blocks that members need of whom the shortest history is given; None: no members."""
        if shortest is None:
            return [NO_BLOCKS] * len(self._tables)
        return [rule.shared(shortest, self._block_count) for rule in self._ledger.rules]

    def _by_group(self, needed: Sequence[Ranges]) -> list[int]:
        """Slots per pool group of so many blocks."""
        sums = [0] * self._ledger.groups
        for rule, ranges in zip(self._ledger.rules, needed, strict=True):
            sums[rule.group] += size(ranges)
        return sums


class PrefixChange:
    """What a change among the members of a prefix does to its blocks: counted first, then made in two steps."""

    __slots__ = ("_before", "_given", "_held", "_kept", "_ledger", "_pinned", "_prefix", "_settled")

    def __init__(self, ledger: Ledger, prefix: Prefix) -> None:
        self._ledger = ledger
        self._prefix = prefix
        active, resident = prefix._active.shortest, prefix._resident.shortest
        self._settled = (active, resident)
        self._before = self._kept = prefix._kept
        self._held, self._pinned = prefix._held, prefix._pinned
        self._given: list[SlotArray] = []
        if resident != prefix._settled[1]:
            self._kept = prefix._needed(resident)
            self._held = prefix._by_group(self._kept)
        if active != prefix._settled[0]:
            self._pinned = prefix._by_group(prefix._needed(active))

    def used(self, beside: Sequence[int]) -> list[int]:
        """Slots per group that active requests need more than before, with `beside`."""
        return [a + b - c for a, b, c in zip(beside, self._pinned, self._prefix._pinned, strict=True)]

    def taken(self, beside: Sequence[int]) -> list[int]:
        """Slots per group that have to be free, with `beside`."""
        return [a + b - c for a, b, c in zip(beside, self._held, self._prefix._held, strict=True)]

    def give(self) -> None:
        """Give back the blocks that nobody needs any more."""
        prefix = self._prefix
        if self._kept is prefix._kept:
            return
        for rule, table, before, after in zip(
            self._ledger.rules, prefix._tables, prefix._kept, self._kept, strict=True
        ):
            self._given.append(slots := array("i"))
            self._ledger.pools[rule.group].give(vacate(table, before, after, slots))

    def finish(self) -> list[Ranges]:
        """Get slots for the blocks that are needed and not there, and say which these are, for each life cycle."""
        prefix, ledger = self._prefix, self._ledger
        for group, number in enumerate(self._pinned):
            ledger.used[group] += number - prefix._pinned[group]
        missing: list[Ranges] = [NO_BLOCKS] * len(self._kept)
        if self._kept is not prefix._kept:
            for number, (rule, table) in enumerate(zip(ledger.rules, prefix._tables, strict=True)):
                before, after = prefix._kept[number], self._kept[number]
                missing[number] = tuple(subtract(after, before))
                occupy(table, before, after, ledger.pools[rule.group].take)
        prefix._kept, prefix._held, prefix._pinned = self._kept, self._held, self._pinned
        prefix._settled = self._settled
        return missing

    def put_back(self) -> None:
        """Have its blocks where they were, wherever the two steps were interrupted."""
        prefix, before = self._prefix, self._before
        if self._kept is not before:
            missing = [array("i")] * (len(before) - len(self._given))
            for table, was, now, slots in zip(
                prefix._tables, before, self._kept, [*self._given, *missing], strict=True
            ):
                put_back(table, was, now, slots)
        prefix._kept = before


def repin(ledger: Ledger, prefix: Prefix) -> None:
    """Count anew which of a prefix's blocks active members need, after one became active or no longer is."""
    active = prefix._active.shortest
    if active == prefix._settled[0]:
        return
    pinned = prefix._by_group(prefix._needed(active))
    for group, number in enumerate(pinned):
        ledger.used[group] += number - prefix._pinned[group]
    prefix._pinned = pinned
    prefix._settled = (active, prefix._settled[1])


def shed(ledger: Ledger, prefix: Prefix) -> None:
    """Give back the blocks that no member needs any more, after one left.

    And take none: another may be coming in, in need of blocks for which this one's make room.
    """
    needed = prefix._needed(prefix._resident.shortest)
    for number, (rule, table) in enumerate(zip(ledger.rules, prefix._tables, strict=True)):
        before = prefix._kept[number]
        gone = subtract(before, needed[number])
        if gone:
            after = tuple(subtract(before, gone))
            prefix._kept[number] = after
            prefix._held[rule.group] -= size(before) - size(after)
            ledger.pools[rule.group].give(vacate(table, before, after, array("i")))
    prefix._settled = (prefix._settled[0], UNKNOWN)


def replace(prefix: Prefix, was: int | None, now: int | None) -> None:
    """Let an active member with the history `was` have the history `now`; None: it is no member."""
    for histories in (prefix._active, prefix._resident):
        if now is not None:
            histories.add(now)
        if was is not None:
            histories.remove(was)
