"""Which blocks of a request have a slot of their own, by life cycle.

The rules of `vmmcache.planning.demand`, which counts slots, as ranges of blocks, which get them. Notation as there: t
tokens per block, a request (c, h) of capacity c and history h, window W, k sink blocks, a shared prompt of s blocks.

- Full attention: ``[s, ceil(c/t))``.
- A window: the same without the stale blocks ``[max(k, s), e)``, ``e = floor((h + 1 - W)/t)``, and, with scratch reuse,
  without the blocks that only pass, ``[max(k, s, ceil(h/t)), e')``: those which the step writes and which are stale at
  its end, e' being e for a history of c - rewind.
- A state: one slot, called block 0.
- The shared prompt: what is not stale for the member with the shortest history.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from vmmcache.memory.ranges import Range
from vmmcache.planning.layout import CacheLayout, LifeCycle

__all__ = ["BlockRule", "Ranges", "rules_of", "size"]

Ranges: TypeAlias = tuple[Range, ...]
"""Half-open ranges of blocks, ascending, none empty, no two that touch and could be one."""

# What stands for a window where there is none; a real window is at least 1.
FULL, STATE = 0, -1
NO_BLOCKS: Final[Ranges] = ()
ONE_BLOCK: Final[Ranges] = ((0, 1),)
NOTHING: Final[Range] = (0, 0)


class BlockRule:
    """Blocks of one life cycle."""

    __slots__ = ("_rewind", "_share", "_sinks", "_t", "_whole", "_window", "group")

    def __init__(self, cycle: LifeCycle, tokens_per_block: int, scratch_rewind: int | None) -> None:
        self.group: Final = cycle.group
        self._t: Final = tokens_per_block
        self._window: Final = STATE if cycle.kind == "ssm" else cycle.window or FULL
        self._sinks: Final = cycle.sink_blocks
        self._share, self._whole = cycle.scratch
        self._rewind: Final = scratch_rewind

    @property
    def steady(self) -> int | None:
        """First blocks that never become stale; None where no block does."""
        return None if self._window <= FULL else self._sinks

    @property
    def shares(self) -> bool:
        """Whether requests can have blocks of a prompt together; a state is each one's own."""
        return self._window != STATE

    def blocks(self, capacity: int) -> int:
        """Blocks of `capacity` tokens, stale or not."""
        return 1 if self._window == STATE else -(-capacity // self._t)

    def kept(self, capacity: int, history: int, prompt: int) -> Ranges:
        """Blocks that have a slot of their own."""
        window = self._window
        if window == STATE:
            return ONE_BLOCK
        t = self._t
        end = -(-capacity // t)
        if window != FULL:
            first = (history + 1 - window) // t
            sinks = self._sinks
            fixed = max(prompt, sinks)
            if self._rewind is not None:
                start, stop = self.passing(capacity, history, prompt)
                if start < stop:
                    head = ((prompt, start),) if first <= fixed else ((prompt, sinks), (first, start))
                    return tuple(span for span in (*head, (stop, end)) if span[0] < span[1])
            if first > fixed:
                if sinks > prompt:
                    return ((prompt, sinks), (first, end)) if first < end else ((prompt, sinks),)
                return ((first, end),) if first < end else NO_BLOCKS
        return ((prompt, end),) if prompt < end else NO_BLOCKS

    def passing(self, capacity: int, history: int, prompt: int) -> Range:
        """Blocks that pass through scratch slots."""
        if self._rewind is None or self._window <= FULL:
            return NOTHING
        start = max(self._sinks, prompt, -(-history // self._t))
        stop = (max(0, capacity - self._rewind) + 1 - self._window) // self._t
        return (start, stop) if start < stop else NOTHING

    def scratch(self, passing: Range) -> int:
        """Slots that so many passing blocks need: layers run one after another, so they share them."""
        return -(-(passing[1] - passing[0]) * self._share // self._whole)

    def took_back(self, passing: Range, history: int) -> bool:
        """Whether a history of `history` tokens still sees blocks that have passed: what a step took back too much."""
        start, stop = passing
        written = min(stop, -(-history // self._t))
        return written > max(start, (history + 1 - self._window) // self._t)

    def shared(self, history: int, prompt: int) -> Ranges:
        """Blocks of a prompt of `prompt` blocks that a request with that history sees."""
        if prompt <= 0 or self._window == STATE:
            return NO_BLOCKS
        if self._window != FULL:
            first = (history + 1 - self._window) // self._t
            if first > self._sinks:
                ends = ((0, min(self._sinks, prompt)), (min(first, prompt), prompt))
                if ends[0][1] == prompt:
                    return ((0, prompt),)
                return tuple(span for span in ends if span[0] < span[1])
        return ((0, prompt),)


def rules_of(layout: CacheLayout, scratch_rewind: int | None) -> list[BlockRule]:
    """A rule for each life cycle of `layout`."""
    return [BlockRule(cycle, layout.tokens_per_block, scratch_rewind) for cycle in layout.life_cycles]


def size(ranges: Ranges) -> int:
    """Blocks in `ranges`."""
    if len(ranges) == 1:
        return ranges[0][1] - ranges[0][0]
    return sum(stop - start for start, stop in ranges)
