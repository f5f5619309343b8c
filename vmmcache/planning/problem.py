"""The checked arguments of a plan as one value, and the floors that follow from them at a level of its requests."""

from __future__ import annotations

from typing import NamedTuple

from vmmcache.errors import PlanError
from vmmcache.planning.fit import LevelSearch, Workload, reduced
from vmmcache.planning.floors import ResumeHeadroom
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.limits import MAX_SIZE, MAX_SLOTS
from vmmcache.planning.notices import Binding, Reduction
from vmmcache.planning.workload import Batch, Request

__all__ = ["AS_ASKED", "Floors", "Problem"]

AS_ASKED = MAX_SIZE
"""The level at which every request has what it asked for."""


class Floors(NamedTuple):
    """Floors of all constraints together, per pool group."""

    needs: list[list[int]]
    """For each constraint, slots without resume headroom."""
    slots: list[int]
    set_by: list[int | None]
    """The constraint that sets each floor; None where the layout does."""


class Problem(NamedTuple):
    """Layout, rounding and constraints."""

    layout: CacheLayout
    footprint: Footprint
    headroom: ResumeHeadroom
    structural: list[int]
    batches: tuple[Batch, ...]
    workloads: list[Workload]

    @property
    def shrinks(self) -> bool:
        """Whether any request may shrink."""
        return any(workload.marked for workload in self.workloads)

    def floors(self, level: int = AS_ASKED) -> Floors:
        """Floors with marked requests at `level`."""
        return self._bound([workload.at(level) for workload in self.workloads])

    def fixed_floors(self) -> Floors:
        """Floors without the marked requests."""
        return self._bound([workload.unmarked for workload in self.workloads])

    def search(self, quota: int, *, token_exact: bool, saves_scratch: bool) -> LevelSearch:
        """The search for the highest level that fits `quota` bytes."""
        return LevelSearch(
            self.workloads,
            self.fixed_floors().slots,
            self.headroom,
            self.footprint,
            quota // self.footprint.granule,
            step=self.layout.tokens_per_block,
            token_exact=token_exact,
            saves_scratch=saves_scratch,
        )

    def resolved(self, level: int) -> tuple[tuple[Batch, ...], tuple[Reduction, ...]]:
        """The constraints at `level`, and what that takes from which entry. Batches that keep all are the very same."""
        batches, reductions = [], []
        for place, (batch, workload) in enumerate(zip(self.batches, self.workloads, strict=True)):
            if all(marked.capacity <= level for marked in workload.marked):
                batches.append(batch)
                continue
            requests: list[Request] = []
            for index, old in enumerate(batch.requests):
                new = reduced(old, batch.system_prompt_length, level)
                requests.append(new)
                if new is not old:
                    capacity = (old.capacity, new.capacity)
                    reductions.append(Reduction(place, index, capacity, (old.history_length, new.history_length)))
            batches.append(Batch(requests, batch.system_prompt_length))
        return tuple(batches), tuple(reductions)

    def binding(self, floors: Floors, usable: int) -> Binding:
        """What keeps a workload at `floors` from being what was asked for."""
        asked = self.floors()
        granule = self.footprint.granule
        missing = [
            self.footprint.granules(group, more) - self.footprint.granules(group, less)
            for group, (more, less) in enumerate(zip(asked.slots, floors.slots, strict=True))
        ]
        group = missing.index(max(missing))
        return Binding(group, asked.set_by[group], self.footprint.total(asked.slots) * granule - usable)

    def _bound(self, needs: list[list[int]]) -> Floors:
        slots = self.structural
        set_by: list[int | None] = [None] * len(slots)
        for place, need in enumerate(needs):
            floors = self.headroom.floors(need)
            for group, (floor, slot) in enumerate(zip(floors, slots, strict=True)):
                if floor > slot:
                    set_by[group] = place
            slots = list(map(max, slots, floors))
        return Floors(needs, slots, set_by)

    def check_numbers(self, floors: Floors) -> None:
        """Refuse floors beyond the numbers that slots can have.

        Raises
        ------
        PlanError
            A floor is above 2^31 - 1.
        """
        slots = self.footprint.counted(floors.slots)
        group = slots.index(max(slots))
        if slots[group] > MAX_SLOTS:
            place = floors.set_by[group]
            who = "the layout itself" if place is None else f"constraints[{place}]"
            raise PlanError(
                f"{who} needs {slots[group]} slots of pool group {group}, and slot"
                f" numbers end at {MAX_SLOTS}; use larger blocks, or shorter or fewer requests"
            )
