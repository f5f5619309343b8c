"""Slots that a batch of requests needs, per pool group, at one moment or at the worst moment of the window.

Notation: t tokens per block, a request (c, h) of capacity c and history h, a life cycle with window W and k sink
blocks, s whole blocks of shared system prompt.

A window forgets block b once no token from position h on can see it, so the stale blocks are ``[k, e)`` with
``e = floor((h + 1 - W) / t)``: the token at position h, which is about to be written, still sees h + 1 - W .. h. Where
e does not exceed k nothing is stale, because sinks come first and stay. Three consequences keep the rest short:

- A request's own blocks, not counting the shared ones, are ``ceil(c/t) - s - |[max(k, s), e)|``, at least 0: a shared
  prompt counts like sinks that somebody else pays for.
- A shared block leaves when it is stale for every request, so the request with the shortest history decides:
  ``s - |[k, min(s, e))|`` shared blocks remain.
- With scratch reuse, blocks that this very step writes and that are stale at its end, ``[max(k, ceil(h/t), s), e')``
  with e' for a history of c - rewind, pass through shared slots: n of them take ``ceil(n * f)`` slots, f being the
  largest share of a slot that one layer holds, since layers run one after another.

An SSM life cycle needs one slot per request, whatever its length.

Formulas as in the planner of TensorRT-LLM's KV cache manager V2, in own words; tests hold them against its published
numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.workload import Batch, Request

__all__ = ["Demand", "Item", "stale_range", "tally"]

Item: TypeAlias = tuple[int, int, int]
"""Capacity, history and number of equal requests."""

# What stands for a window where there is none; a real window is at least 1.
FULL, SSM = 0, -1


class _Cycle(NamedTuple):
    """A life cycle, as far as demand is concerned."""

    window: int
    sinks: int
    share: int
    """Of `whole`: the largest share of a slot that one layer holds."""
    whole: int

    def saved(self, scratch: int) -> int:
        """Slots that a number of scratch blocks saves."""
        return scratch + -scratch * self.share // self.whole if scratch > 0 else 0


def stale_range(tokens_per_block: int, window: int | None, sink_blocks: int, history: int) -> tuple[int, int]:
    """Blocks, as a half-open range, that a life cycle no longer needs once `history` tokens are computed.

    >>> stale_range(8, 16, 1, 100)
    (1, 10)
    >>> stale_range(8, None, 0, 100)
    (0, 0)
    """
    start = min(-(-history // tokens_per_block), sink_blocks)
    if window is None:
        return start, start
    return start, max(start, (history + 1 - window) // tokens_per_block)


def tally(requests: Iterable[Request]) -> list[Item]:
    """Put equal requests together, so that what follows costs the same for one request and for a thousand copies."""
    return [(request[0], request[1], request[3] * times) for request, times in Counter(requests).items()]


class Demand:
    """Slots of a layout as a function of requests.

    Parameters
    ----------
    layout : CacheLayout
        Whose slots.
    scratch_rewind : int, optional
        Tokens that a step may take back at its end, with scratch reuse on; None is off.
    sustained : bool, default False
        Windowed life cycles count the worst phase that a request passes through as it grows, not the moment given: the
        maximum over all (c + d, h + d), d >= 0, each request at a phase of its own.
    """

    __slots__ = ("_cycles", "_group_of", "_groups", "_rewind", "_sustained", "_t", "windows")

    def __init__(self, layout: CacheLayout, scratch_rewind: int | None = None, sustained: bool = False) -> None:
        self._t = layout.tokens_per_block
        self._rewind = scratch_rewind
        self._sustained = sustained
        self._groups = len(layout.groups)
        self._group_of = [cycle.group for cycle in layout.life_cycles]
        self._cycles = [
            _Cycle(SSM if cycle.kind == "ssm" else cycle.window or FULL, cycle.sink_blocks, *cycle.scratch)
            for cycle in layout.life_cycles
        ]
        self.windows = self.by_group([int(cycle.window > FULL) for cycle in self._cycles])
        """Windowed life cycles per pool group."""

    def of(self, batch: Batch) -> list[int]:
        """Slots per pool group for `batch`."""
        items = tally(batch.requests)
        prompt = self.prompt_blocks(batch)
        slots = self.by_group(self.private(items, prompt))
        shared = self.shared(items, prompt)
        return slots if shared is None else self.by_group(shared, slots)

    def prompt_blocks(self, batch: Batch) -> int:
        """Whole blocks of the prompt that the requests of `batch` share."""
        return batch.system_prompt_length // self._t

    def by_group(self, slots: list[int], beside: list[int] | None = None) -> list[int]:
        """Sum over the life cycles of each pool group; beside what the groups have already, where given."""
        sums = [0] * self._groups if beside is None else beside.copy()
        for group, number in zip(self._group_of, slots, strict=True):
            sums[group] += number
        return sums

    def private(self, items: list[Item], prompt: int) -> list[int]:
        """Slots per life cycle that the requests hold for themselves: a sum over the requests."""
        t = self._t
        blocks = copies = 0
        for capacity, _, count in items:
            own = -(-capacity // t) - prompt
            if own > 0:
                blocks += own * count
            copies += count
        slots = []
        for cycle in self._cycles:
            window, sinks, _, _ = cycle
            if window <= FULL:
                slots.append(blocks if window == FULL else copies)
            elif self._sustained:
                worst = sum(self._worst(cycle, capacity - history) * count for capacity, history, count in items)
                slots.append(worst - min(sinks, prompt) * copies)
            else:
                kept = max(sinks, prompt) if prompt else sinks
                past = 1 - window
                gone = 0
                for _, history, count in items:
                    stale = (history + past) // t - kept
                    if stale > 0:
                        gone += stale * count
                if self._rewind is not None:
                    gone += sum(cycle.saved(self._scratch(window, kept, c, h)) * count for c, h, count in items)
                slots.append(blocks - gone)
        return slots

    def shared(self, items: list[Item], prompt: int) -> list[int] | None:
        """Slots per life cycle that hold the prompt which `items` share; None where they share none."""
        if not prompt or not items:
            return None
        shortest = min(history for _, history, _ in items)
        slots = []
        for cycle in self._cycles:
            window, sinks, _, _ = cycle
            if window <= FULL:
                slots.append(prompt if window == FULL else 0)
            elif self._sustained:
                slots.append(min(sinks, prompt) + self._laggard(cycle, items, prompt))
            else:
                slots.append(prompt - max(0, min(prompt, (shortest + 1 - window) // self._t) - sinks))
        return slots

    def deciding(self, items: list[Item]) -> list[Item]:
        """Those of `items` on which `shared` depends."""
        if self._sustained:
            return items
        return [min(items, key=lambda item: item[1])] if items else []

    @property
    def saves_scratch(self) -> bool:
        """Whether scratch reuse is on."""
        return self._rewind is not None

    def _scratch(self, window: int, kept: int, capacity: int, history: int) -> int:
        """Blocks that a step writes and that are stale at its end; not positive where there are none."""
        assert self._rewind is not None
        end = (max(0, capacity - self._rewind) + 1 - window) // self._t
        return end - max(kept, -(-history // self._t))

    def _worst(self, cycle: _Cycle, headroom: int) -> int:
        """Most slots that a long request needs while its window slides, of which a step writes `headroom` tokens."""
        t = self._t
        if self._rewind is None:
            # Sinks, and the most blocks that a run of `window - 1 + headroom` tokens can straddle.
            return cycle.sinks + (cycle.window + headroom + t - 3) // t + 1
        # Far enough to be past the sinks at every phase; from there on only the place within a block matters.
        far = (cycle.sinks + 1) * t + cycle.window + self._rewind
        return max(self._alone(cycle, far + phase, headroom, cycle.sinks) for phase in range(t))

    def _laggard(self, cycle: _Cycle, items: list[Item], prompt: int) -> int:
        """Slots beyond everybody's worst that a request can need that still pays for the shared prompt.

        Mostly there are none: a prompt block costs a slot, whoever pays. But a request shorter than the prompt pays for
        blocks that it does not have, and blocks of the prompt do not pass through scratch slots. It is the last request
        to leave the prompt that counts, so one of them and not all.
        """
        t = self._t
        window, sinks, _, _ = cycle
        excess = 0
        for capacity, history, _ in items:
            worst = self._worst(cycle, capacity - history)
            shared = prompt - max(0, min(prompt, (history + 1 - window) // t) - sinks)
            excess = max(excess, shared - worst)
            for start in range(history, history + t) if self._rewind is not None else ():
                # From a given place in a block the need grows until the window fills, and falls from there on.
                peak = start + max(0, -((start + 1 - window - sinks * t) // t)) * t
                need = self._alone(cycle, peak, capacity - history, max(sinks, prompt))
                excess = max(excess, need - worst)
        return excess

    def _alone(self, cycle: _Cycle, history: int, headroom: int, kept: int) -> int:
        """Slots of one request that shares with nobody; blocks before `kept` are not passed through scratch."""
        capacity = history + headroom
        stale = max(0, (history + 1 - cycle.window) // self._t - cycle.sinks)
        scratch = self._scratch(cycle.window, kept, capacity, history)
        return -(-capacity // self._t) - stale - cycle.saved(scratch)
