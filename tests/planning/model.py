"""A planner that thinks block by block and slot by slot: slow, and without a formula in common with the real one.

It knows layouts only as lists of layers, counts blocks by going through them, hands out slots one at a time, and finds
the best fit by trying every candidate. Tests hold the planner against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from vmmcache.planning import Attention, Batch, CacheLayout, ConstraintPolicy, Request, Ssm


class Cycle(NamedTuple):
    """One life cycle, by what defines it."""

    window: int | None
    sinks: int
    ssm: bool


class Model:
    """Counts for one layout."""

    def __init__(self, layout: CacheLayout, rewind: int | None = None) -> None:
        self.t = layout.tokens_per_block
        self.rewind = rewind
        self.sizes: dict[Cycle, list[int]] = {}
        layers_of: dict[Cycle, list[Attention | Ssm]] = {}
        for layer in layout.layers:
            layers_of.setdefault(self._cycle(layer), []).extend([layer] * layer.count)
        self.share: dict[Cycle, Fraction] = {}
        for cycle, layers in layers_of.items():
            every = [self._size(buffer) for layer in layers for buffer in layer.buffers]
            self.sizes[cycle] = sorted((size * every.count(size) for size in set(every)), reverse=True)
            self.share[cycle] = max(
                Fraction([self._size(buffer) for buffer in layer.buffers].count(size), every.count(size))
                for layer in layers
                for size in {self._size(buffer) for buffer in layer.buffers}
            )
        self.groups: list[list[Cycle]] = []
        for cycle in self.sizes:
            for group in self.groups:
                if self.sizes[group[0]] == self.sizes[cycle]:
                    group.append(cycle)
                    break
            else:
                self.groups.append([cycle])

    def _cycle(self, layer: Attention | Ssm) -> Cycle:
        if isinstance(layer, Ssm):
            return Cycle(None, 0, True)
        return Cycle(layer.window, len(range(0, layer.sink_tokens, self.t)), False)

    def _size(self, buffer: tuple[str, int, int | None]) -> int:
        _, nbytes, own = buffer
        return nbytes if own is None else nbytes * (self.t // own)

    def live(self, cycle: Cycle, block: int, history: int) -> bool:
        """Whether any token of the block can still be seen from position `history` on."""
        if cycle.window is None or block < cycle.sinks:
            return True
        last_token = block * self.t + self.t - 1
        return last_token > history - cycle.window

    def blocks(self, tokens: int) -> int:
        return len(range(0, tokens, self.t))

    def prompt(self, batch: Batch) -> int:
        return len(range(self.t, batch.system_prompt_length + 1, self.t))

    def own(self, cycle: Cycle, request: Request, prompt: int) -> int:
        """Slots that one copy of a request takes for itself."""
        if cycle.ssm:
            return 1
        mine = [b for b in range(prompt, self.blocks(request.capacity)) if self.live(cycle, b, request.history_length)]
        if self.rewind is None or cycle.window is None:
            return len(mine)
        end = max(0, request.capacity - self.rewind)
        passing = [b for b in mine if b >= self.blocks(request.history_length) and not self.live(cycle, b, end)]
        return len(mine) - len(passing) + ceil(len(passing) * self.share[cycle])

    def common(self, cycle: Cycle, batch: Batch) -> int:
        """Slots that hold the shared prompt."""
        if cycle.ssm:
            return 0
        return sum(
            any(self.live(cycle, block, request.history_length) for request in batch.requests)
            for block in range(self.prompt(batch))
        )

    def demand(self, batch: Batch) -> list[int]:
        """Slots per group."""
        prompt = self.prompt(batch)
        return [
            sum(
                self.common(cycle, batch)
                + sum(self.own(cycle, r, prompt) for r in batch.requests for _ in range(r.count))
                for cycle in group
            )
            for group in self.groups
        ]

    def structural(self) -> list[int]:
        """Slots without which nothing runs, found by sliding each window over all places within a block."""
        straddled = {}
        for cycle in self.sizes:
            if cycle.window is not None:
                runs = [range(start, start + cycle.window) for start in range(self.t)]
                most = max(len({token // self.t for token in run}) for run in runs)
                straddled[cycle] = cycle.sinks + most
        widest = max(straddled.values(), default=1)
        return [sum(1 if cycle.ssm else straddled.get(cycle, widest) for cycle in group) for group in self.groups]

    def floors(self, batches: Iterable[Batch], share: Fraction) -> list[int]:
        """Smallest slot counts that hold every batch, one after the other, at that share of utilisation."""
        floors = self.structural()
        for batch in batches:
            for index, (group, need) in enumerate(zip(self.groups, self.demand(batch), strict=True)):
                if not all(cycle.ssm for cycle in group) and 0 < share < 1:
                    slots = need
                    while need > share * slots:
                        slots += 1
                    need = slots
                floors[index] = max(floors[index], need)
        return floors

    def nbytes(self, slots: Sequence[int], granule: int) -> int:
        """Bytes that the slots take, pool by pool, granule by granule."""
        return sum(
            len(range(0, count * size, granule)) * granule
            for group, count in zip(self.groups, slots, strict=True)
            for size in self.sizes[group[0]]
        )

    def best_fit(
        self, batches: Sequence[Batch], share: Fraction, granule: int, quota: int, exact: bool = False
    ) -> list[Batch] | None:
        """The batches at the largest level that fits, by trying all of them from the top."""
        marked = [
            (request, max(1, request.capacity - request.history_length, batch.system_prompt_length))
            for batch in batches
            for request in batch.requests
            if request.policy is ConstraintPolicy.FIT_TO_QUOTA
        ]
        top = max(request.capacity for request, _ in marked)
        bottom = min(min(request.capacity, lower) for request, lower in marked)
        levels = [level for level in range(bottom, top + 1) if exact or level in (bottom, top) or level % self.t == 0]
        for level in reversed(levels):
            resolved = [self.at(batch, level) for batch in batches]
            if self.nbytes(self.floors(resolved, share), granule) <= quota // granule * granule:
                return resolved
        return None

    def at(self, batch: Batch, level: int) -> Batch:
        """A batch with its marked requests cut to a level."""
        cut = []
        for request in batch.requests:
            capacity, history = request.capacity, request.history_length
            if request.policy is ConstraintPolicy.FIT_TO_QUOTA:
                least = max(1, capacity - history, batch.system_prompt_length)
                while capacity > level and capacity > least:
                    capacity, history = capacity - 1, history - 1
            cut.append(Request(capacity, history, request.policy, request.count))
        return Batch(cut, batch.system_prompt_length)


class Allocator:
    """Slots handed out one by one, behind a resume gate."""

    def __init__(self, model: Model, slots: Sequence[int], share: Fraction) -> None:
        self.model = model
        self.total = list(slots)
        self.free = list(slots)
        self.share = share

    def admit(self, batch: Batch, order: Sequence[int]) -> int:
        """Resume the batch's requests in that order; give back how many were admitted before one was refused."""
        model = self.model
        prompt_taken = False
        admitted = 0
        for place in order:
            if not self._gate():
                return admitted
            request = batch.requests[place]
            for index, group in enumerate(model.groups):
                for cycle in group:
                    take = model.own(cycle, request, model.prompt(batch))
                    take += 0 if prompt_taken else model.common(cycle, batch)
                    for _ in range(take):
                        if self.free[index] == 0:
                            return admitted
                        self.free[index] -= 1
            prompt_taken = True
            admitted += 1
        return admitted

    def _gate(self) -> bool:
        if not 0 < self.share < 1:
            return True
        return all(
            Fraction(total - free, total) <= self.share
            for group, total, free in zip(self.model.groups, self.total, self.free, strict=True)
            if not all(cycle.ssm for cycle in group)
        )
