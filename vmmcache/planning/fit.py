"""FIT_TO_QUOTA: the longest requests that the quota can hold.

All marked requests share one *level*, a number of tokens: each gets the level as its capacity, but no less than its own
lower bound and no more than it asked for, and keeps its headroom (capacity - history). So the longest shrink first, and
the search is for one number. Candidate levels are the multiples of tokens_per_block, or every token.

The level sought is the largest that fits, and bisection alone would miss it, because need does not always grow with the
level. It does grow when every request that moves at all moves by whole blocks: its blocks grow by one while its stale
range grows by one at most. It may fall

- when a request leaves its lower bound, or arrives at what it asked for, by less than a block: the window may move off
  a block that no new block makes up for. Levels are therefore cut into intervals at those points (arriving is harmless
  on the grid of blocks as long as there is no scratch: then a new block comes with it);
- from token to token. With every token a candidate, each remainder modulo tokens_per_block is a grid of its own. Only
  scratch makes that worth while: without it the level at a block's end needs no more than any other within the block;
- when shared prompt blocks become stale while scratch reuse keeps new blocks cheap. There the search goes by lower
  bounds: private blocks at an interval's low end, shared blocks at its high end. Half-intervals that cannot fit are
  dropped, so the result is exact. Where need does grow the bound is the need, and it grows next to straight: the search
  begins where the line through both ends meets the quota, which is soon within a few levels.

With many different marked requests there are many intervals. A run of them is dropped at once by what a request can
fall by at most: over whole blocks not at all, over the rest of a block by two slots of a windowed life cycle (one that
leaves the window, one that now passes through scratch).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from vmmcache.planning.demand import Demand, Item
from vmmcache.planning.floors import ResumeHeadroom
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.limits import MAX_SLOTS
from vmmcache.planning.workload import Batch, ConstraintPolicy, Request, lower_bound

__all__ = ["LevelSearch", "Workload", "reduced"]


class Marked(NamedTuple):
    """Equal requests that may shrink."""

    lower: int
    capacity: int
    headroom: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which means nothing here

    def at(self, level: int) -> Item:
        """Capacity, history and number at a level."""
        capacity = min(max(level, self.lower), self.capacity)
        return capacity, capacity - self.headroom, self.count


class Workload:
    """What one batch needs, as a function of the level of its marked requests.

    Parameters
    ----------
    demand : Demand
        Slots of the layout.
    batch : Batch
        Its unmarked requests are evaluated here, once.
    """

    __slots__ = ("_deciding", "_demand", "_fixed", "_prompt", "dips", "marked", "unmarked")

    def __init__(self, demand: Demand, batch: Batch) -> None:
        items: list[Item] = []
        self.marked: list[Marked] = []
        # Equal requests are evaluated once, however many there are.
        for request, times in Counter(batch.requests).items():
            count = request.count * times
            if request.policy is ConstraintPolicy.FIXED:
                items.append((request.capacity, request.history_length, count))
            else:
                lower = lower_bound(request, batch.system_prompt_length)
                self.marked.append(Marked(lower, request.capacity, request.capacity - request.history_length, count))
        self._demand = demand
        self._prompt = demand.prompt_blocks(batch)
        self._fixed = demand.by_group(demand.private(items, self._prompt))
        self._deciding = demand.deciding(items) if self._prompt else []
        copies = sum(marked.count for marked in self.marked)
        self.dips = [2 * copies * windows for windows in demand.windows]
        """By how many slots per pool group the need may fall, at most, from any level to any higher one."""
        self.unmarked = self._with_shared(self._fixed, self._deciding)
        """Slots per pool group without the marked requests."""

    def at(self, level: int, shared_level: int | None = None) -> list[int]:
        """Slots per pool group at a level; shared blocks as at `shared_level`, if another."""
        if not self.marked:
            return self.unmarked
        private = self._demand.private([marked.at(level) for marked in self.marked], self._prompt)
        slots = self._demand.by_group(private, self._fixed)
        if not self._prompt:
            return slots
        shared_level = level if shared_level is None else shared_level
        return self._with_shared(slots, self._deciding + [marked.at(shared_level) for marked in self.marked])

    @property
    def may_need_less_at_a_higher_level(self) -> bool:
        """Whether shared blocks can leave faster than others come."""
        return bool(self.marked and self._prompt and self._demand.saves_scratch)

    def _with_shared(self, slots: list[int], items: list[Item]) -> list[int]:
        shared = self._demand.shared(items, self._prompt)
        return slots if shared is None else self._demand.by_group(shared, slots)


class LevelSearch:
    """Finds the highest level at which all workloads together fit.

    Parameters
    ----------
    workloads : sequence of Workload
        One for each constraint; at least one has marked requests.
    base : list of int
        Floors per pool group that hold at every level.
    headroom, footprint
        From slots to floors to granules.
    usable : int
        Granules.
    step : int
        Tokens between candidate levels: tokens_per_block.
    token_exact : bool
        Every token is a candidate.
    saves_scratch : bool
        Scratch reuse is on.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        base: list[int],
        headroom: ResumeHeadroom,
        footprint: Footprint,
        usable: int,
        *,
        step: int,
        token_exact: bool,
        saves_scratch: bool,
    ) -> None:
        self._workloads = [workload for workload in workloads if workload.marked]
        self._base = base
        self._headroom = headroom
        self._footprint = footprint
        self._usable = usable
        self._step = step
        self._token_exact = token_exact and saves_scratch
        self._saves_scratch = saves_scratch
        self._bounds_only = any(workload.may_need_less_at_a_higher_level for workload in self._workloads)
        marked = [marked for workload in self._workloads for marked in workload.marked]
        self._marked = marked
        self.bottom = min(entry.lower for entry in marked)
        self.top = max(entry.capacity for entry in marked)
        self._need: dict[int, int | None] = {}
        """Granules of the levels that were tried; None where they cannot be numbered with 31 bits."""
        self.least: int | None = None
        """Fewest granules of all levels that were tried; None where none of them can be numbered with 31 bits."""

    def highest(self) -> int | None:
        """The largest candidate level that fits; None where none does."""
        if self._fits(self.top):
            return self.top
        cuts = self._cuts()
        level = self._highest_between(cuts, 0, len(cuts) - 1)
        return self.bottom if level is None and self._fits(self.bottom) else level

    def _cuts(self) -> list[int]:
        """Levels between which each request is still or moves with the level; bottom and top included."""
        cuts = {self.bottom, self.top}
        for entry in self._marked:
            if self._token_exact or entry.lower % self._step:
                cuts.add(entry.lower)
            if self._token_exact or (self._saves_scratch and entry.capacity % self._step):
                cuts.add(entry.capacity)
        return sorted(cuts)

    def _highest_between(self, cuts: list[int], first: int, last: int) -> int | None:
        """The largest candidate that fits from ``cuts[first]`` to ``cuts[last]``."""
        if last - first > 1:
            if not self._may_fit_from(cuts[first]):
                return None
            middle = (first + last) // 2
            level = self._highest_between(cuts, middle, last)
            return self._highest_between(cuts, first, middle) if level is None else level
        if last == first:
            return None
        low, high = cuts[first], cuts[last]
        return self._highest_token(low, high) if self._token_exact else self._highest_block(low, high)

    def _highest_block(self, low: int, high: int) -> int | None:
        first = -(-low // self._step)
        number = high // self._step - first + 1
        return self._highest_of(first * self._step, number) if number > 0 else None

    def _highest_token(self, low: int, high: int) -> int | None:
        best: int | None = None
        for start in range(low, min(low + self._step, high + 1)):
            # Only levels above the best so far are of interest: mostly the first of them already does not fit.
            first = start if best is None else best + 1 + (start - best - 1) % self._step
            number = (high - first) // self._step + 1
            found = self._highest_of(first, number) if number > 0 else None
            best = best if found is None else found
        return best

    def _highest_of(self, first: int, number: int) -> int | None:
        """The largest level that fits of `number` levels from `first` on, one block apart."""
        if not self._bounds_only:
            return self._highest_where_need_grows(first, number)
        if not self._fits(first, first + (number - 1) * self._step):
            return None
        if number == 1:
            return first
        lower = (number + 1) // 2
        found = self._highest_of(first + lower * self._step, number - lower)
        return self._highest_of(first, lower) if found is None else found

    def _highest_where_need_grows(self, first: int, number: int) -> int | None:
        """As `_highest_of`. Need is nearly straight: two guesses by its slope, then doubling steps."""
        if not self._fits(first):
            return None
        low, high = 0, number - 1
        if self._fits(first + high * self._step):
            return first + high * self._step
        guesses, stride, rising = 2, 1, True
        while high - low > 1:
            here, there = self._need[first + low * self._step], self._need[first + high * self._step]
            assert here is not None  # it fits
            guessing = there is not None and guesses > 0
            if there is None or not (guesses or stride):
                probe = (low + high) // 2
            elif guesses:
                probe = low + (self._usable - here) * (high - low) // (there - here)
                # So many levels take the same granules: the best one is not much further away than that.
                guesses, stride = guesses - 1, max(1, (high - low) // (there - here))
            else:
                probe = low + stride if rising else high - stride
                stride *= 2
            probe = min(max(probe, low + 1), high - 1)
            fits = self._fits(first + probe * self._step)
            low, high = (probe, high) if fits else (low, probe)
            if guessing:
                rising = fits
            elif there is not None and fits is not rising:
                stride = 0  # gone past it: what is left lies between two steps
        return first + low * self._step

    def _fits(self, low: int, high: int | None = None) -> bool:
        """Whether `low` fits; with bounds only and `high` given, whether any level from `low` to `high` might."""
        shared_level = high if self._bounds_only else None
        if shared_level is not None and shared_level != low:
            granules = self._granules([workload.at(low, shared_level) for workload in self._workloads])
            return granules is not None and granules <= self._usable
        if low not in self._need:
            granules = self._need[low] = self._granules([workload.at(low) for workload in self._workloads])
            if granules is not None and (self.least is None or granules < self.least):
                self.least = granules
        granules = self._need[low]
        return granules is not None and granules <= self._usable

    def _may_fit_from(self, low: int) -> bool:
        """Whether any level from `low` on might fit."""
        slots = []
        for workload in self._workloads:
            needs = workload.at(low, self.top)
            slots.append([max(0, need - dip) for need, dip in zip(needs, workload.dips, strict=True)])
        granules = self._granules(slots)
        return granules is not None and granules <= self._usable

    def _granules(self, slots: list[list[int]]) -> int | None:
        """What floors for these needs take; None where they cannot be numbered."""
        floors = self._base
        for needs in slots:
            floors = list(map(max, self._headroom.floors(needs), floors))
        return None if max(floors) > MAX_SLOTS else self._footprint.total(floors)


def reduced(request: Request, system_prompt_length: int, level: int) -> Request:
    """`request` at a level; itself where it keeps what it asked for."""
    if request.policy is ConstraintPolicy.FIXED or request.capacity <= level:
        return request
    capacity = max(level, lower_bound(request, system_prompt_length))
    history = capacity - (request.capacity - request.history_length)
    return request if capacity == request.capacity else Request(capacity, history, request.policy, request.count)
