"""What the two paths of a manager have in common: a plan, pools, a backing, and somebody who reads memory.

The measured path (`vmmcache.cache.measured`) has addresses for the largest cache from the start and decides how much
memory goes behind them after warm-up. The estimated path (`vmmcache.cache.estimated`) has a temporary pool to profile
with, and makes the final one from what that showed. Whoever uses a manager need not know which one it has.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from vmmcache.cache.backing import Backing
from vmmcache.cache.budget import Mode
from vmmcache.cache.counts import plan_for, split_like, with_counts
from vmmcache.cache.fitting import AlignmentLoss, PlanInputs, alignment_loss, fit
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.settings import Settings
from vmmcache.cache.shared import Demand, SharedDevice
from vmmcache.cache.sizing import Budget
from vmmcache.cache.snapshots import MemoryReader, Snapshot
from vmmcache.errors import QuotaError
from vmmcache.planning import Plan, PlanWarning
from vmmcache.units import align_down

__all__ = ["Found", "Path"]


class Path(ABC):
    """One cache's memory and what decides how much of it there is."""

    mode: ClassVar[Mode]

    keeps_memory: bool = False
    """Whether the device may give memory back late (D10)."""
    backing: Backing
    capacity: tuple[int, ...]
    """Most slots of each group."""
    plan: Plan
    """Of the capacity while warming up, of what is committed afterwards."""

    def __init__(self, settings: Settings, shared: SharedDevice, reader: MemoryReader, granule: int) -> None:
        self.settings: Final = settings
        self.shared: Final = shared
        self.reader: Final = reader
        self.pools: Final = PoolMap(settings.layout, settings.arrangement, granule)
        self.inputs: Final = plan_inputs(settings, granule)
        self.final: Plan | None = None

    @property
    @abstractmethod
    def device(self) -> str:
        """The device string."""

    @property
    def aligned(self) -> bool:
        """Whether counts have to end on granules, because somebody will register the memory."""
        return bool(self.settings.connectors)

    # What a shared device asks --------------------------------------------------------------------------------------

    @property
    def manual(self) -> bool:
        """Whether the caller stated its size."""
        return self.settings.budget.manual

    @property
    def held_bytes(self) -> int:
        """Bytes of the device that this cache holds now."""
        return self.backing.physical_bytes

    @property
    def final_bytes(self) -> int | None:
        """Bytes that it has for good, or was given a size in; None until that is decided."""
        if self.final is not None:
            return self.final.nbytes
        budget = self.settings.budget
        if (counts := budget.slots_of(len(self.pools.groups))) is not None:
            return self.pools.footprint(counts)
        return budget.nbytes

    def demand(self) -> Demand:
        """What it asks of a device that it shares."""
        asked = self.inputs.plan(aligned=self.aligned).nbytes
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PlanWarning)  # this is a question, and no plan
                least = self.inputs.plan(self.pools.granule, aligned=self.aligned).nbytes
        except QuotaError as error:
            least = error.needed
        layout = self.settings.layout
        per_block = sum(size for cycle in layout.life_cycles for size in cycle.slot_bytes)
        return Demand(min(least, asked), asked, max(1, per_block // layout.tokens_per_block))

    # How much -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def first(self) -> tuple[int, ...]:
        """Slots that are there from the start."""

    def bound(self) -> tuple[int, ...]:
        """Slots that this rank could commit while warming up; never fewer than are there."""
        if self.manual:
            return tuple(map(max, self.backing.slots, (group.slots for group in self.plan.groups)))
        nbytes = self.shared.bound(self.reader, self.mode)
        return tuple(map(max, self.backing.slots, map(min, self.capacity, self.spread(nbytes))))

    def spread(self, nbytes: int) -> tuple[int, ...]:
        """Slots for so many bytes: as the plan would have it, below its floors in the proportions of the capacity."""
        if self.pools.footprint(self.capacity) <= nbytes:
            return self.capacity
        if nbytes >= self.plan.min_nbytes:
            return tuple(group.slots for group in self.plan.adjusted(nbytes).groups)
        low, high = 0, 1 << 20
        while low < high - 1:
            middle = (low + high) // 2
            if self.pools.footprint(_part(self.capacity, middle)) <= nbytes:
                low = middle
            else:
                high = middle
        return _part(self.capacity, low)

    def measure(self, withheld: int = 0, *, again: bool = False) -> Found:
        """What this rank can hold, as a plan. Nothing is committed.

        Parameters
        ----------
        withheld : int
            Bytes to leave aside, because more than that was not to be had.
        again : bool
            Measure anew, also where another manager of the device has measured.

        Raises
        ------
        PlanError
            What was declared does not fit.
        """
        manual = self.settings.budget
        if manual.manual:
            now = self.shared.snapshot(self.reader, "warm")
            if manual.nbytes is None:
                stated, lost = self._stated()
                return Found(self._within(stated), now, None, lost=lost)
            return self._found(fit(self.inputs, manual.nbytes, self.aligned), now, None)
        snapshot, budget = self.shared.measure(self.reader, self.mode, again=again)
        share = self.shared.share(self, budget.nbytes)
        plan = fit(self.inputs, max(0, share - withheld), self.aligned, budget)
        return self._found(plan, snapshot, budget, others=budget.nbytes - share, withheld=min(withheld, share))

    def _found(
        self,
        plan: Plan,
        snapshot: Snapshot,
        budget: Budget | None,
        *,
        others: int = 0,
        withheld: int = 0,
    ) -> Found:
        within = self._within(plan)
        return Found(within, snapshot, budget, others, withheld, alignment_loss(within))

    def _stated(self) -> tuple[Plan, AlignmentLoss]:
        """The plan for the slots that the caller stated (S12); fewer, where they have to end on granules."""
        stated = self.settings.budget.slots_of(len(self.pools.groups))
        assert stated is not None
        nbytes = self.pools.footprint(stated)
        counts = tuple(map(align_down, stated, self.pools.alignments)) if self.aligned else stated
        # A later quota is split as these are.
        plan = split_like(plan_for(self.inputs, counts, nbytes), stated)._replace(aligned=self.aligned)
        lost = tuple(more - less for more, less in zip(stated, counts, strict=True))
        return with_counts(plan, counts), AlignmentLoss(lost, nbytes - self.pools.footprint(counts))

    def _within(self, plan: Plan) -> Plan:
        """The plan, cut to the addresses that there are: a smaller quota may split by a slot or two otherwise."""
        counts = tuple(group.slots for group in plan.groups)
        within = tuple(map(min, counts, self.most()))
        return plan if within == counts else with_counts(plan, within)

    @abstractmethod
    def most(self) -> tuple[int, ...]:
        """Most slots that a final plan may have."""

    # Committing -----------------------------------------------------------------------------------------------------

    def commit(self, counts: Sequence[int]) -> None:
        """Back exactly so many slots, for good; what warm-up wrote is lost.

        Not in the pieces in which warm-up had them: each segment in one allocation where somebody registers it, else
        in allocations of at most the chunk, so that a cache that shrinks later can give them back.

        After a failure the backing may have fewer slots, or be asleep.
        """
        if self.keeps_memory:
            # What is unmapped is paid for until the addresses are let go of for a moment, as sleeping does.
            self.backing.commit((0,) * len(counts))
            self.backing.sleep()
            self.backing.wake()
        if self.aligned:
            self.backing.commit(counts, defragment=True, keep=False)
        else:
            self.backing.commit((0,) * len(counts), keep=False)
            self.backing.commit(counts, keep=False)

    def back_to(self, counts: Sequence[int]) -> None:
        """Undo a `commit` that failed, as far as there is memory."""
        if self.backing.state == "asleep":
            self.backing.wake()
        self.backing.commit(counts)


class Found(NamedTuple):
    """What this rank can hold."""

    plan: Plan
    snapshot: Snapshot
    budget: Budget | None
    """Where the bytes come from; None where the caller stated them."""
    others: int = 0
    """Of these, bytes of other managers that share the device."""
    withheld: int = 0
    """Bytes left aside, because they disappeared when they were to be committed."""
    lost: AlignmentLoss = AlignmentLoss((), 0)
    """What is given up so that segments end on granules."""


def plan_inputs(settings: Settings, granule: int) -> PlanInputs:
    """What the planner is given, beside the quota."""
    return PlanInputs(
        layout=settings.layout,
        granule=granule,
        arrangement=settings.arrangement,
        constraints=settings.constraints,
        typical_step=settings.typical_step,
        pool_ratio=settings.pool_ratio,
        max_util_for_resume=settings.max_util_for_resume,
        scratch_rewind=settings.scratch_rewind,
        sustained=settings.sustained,
        null_block=settings.null_block,
    )


def _part(counts: Sequence[int], millionths: int) -> tuple[int, ...]:
    return tuple(count * millionths >> 20 for count in counts)
