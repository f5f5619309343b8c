"""A plan: slots per pool group, the bytes that they really take, and why there are not more."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from vmmcache.errors import ConfigError, QuotaError
from vmmcache.planning.demand import Demand
from vmmcache.planning.footprint import Footprint, footprint_of
from vmmcache.planning.layout import Arrangement, CacheLayout, LifeCycle, Part
from vmmcache.planning.limits import as_size
from vmmcache.planning.notices import Binding, Reduction
from vmmcache.planning.split import ratio_weights, slot_weights, split
from vmmcache.planning.workload import Batch
from vmmcache.units import align_down, format_bytes

__all__ = ["GroupPlan", "Plan", "Weights", "over_quota", "with_slots"]


class GroupPlan(NamedTuple):
    """What a plan gives to one pool group."""

    life_cycles: tuple[LifeCycle, ...]
    slot_bytes: tuple[int, ...]
    """Bytes of one slot in each pool, largest first."""
    min_slots: int
    """The floor: fewer are refused, now and later."""
    slots: int
    """Equal to the floor where no quota was given."""
    nbytes: int
    """Bytes that the slots take of memory, each segment rounded up to the granule."""
    segments: tuple[tuple[Part, ...], ...]
    """For each pool: bytes of one slot in each of its segments, and how many such segments there are."""
    set_by: int | None
    """The constraint that sets the floor; None where the layout itself does."""


class Weights(NamedTuple):
    """How what lies beyond the floors is split."""

    groups: tuple[int, ...]
    explicit: bool
    """From the caller's own ratio."""


class Plan(NamedTuple):
    """What `plan` computes. Compare, pickle and hash it as you like: it is a value."""

    layout: CacheLayout
    arrangement: Arrangement
    granule: int
    quota: int | None
    """Bytes configured; None where only the demand was asked for."""
    usable: int | None
    """The quota rounded down to the granule."""
    groups: tuple[GroupPlan, ...]
    nbytes: int
    """Bytes of all groups: what a region maps for them."""
    min_nbytes: int
    """Bytes that the floors alone take, and so the smallest quota that is not refused."""
    demand: tuple[tuple[int, ...], ...]
    """For each constraint, as resolved, the slots per pool group that it needs, without resume headroom."""
    resolved_constraints: tuple[Batch, ...]
    reductions: tuple[Reduction, ...]
    binding: Binding | None
    """Why the workload had to be reduced; None where it fits as asked for."""
    weights: Weights
    resume_share: Fraction
    """What constraints were divided by; the gate that resumes requests must not be stricter. 1: no gate."""
    scratch_rewind: int | None
    reserved_slots: int = 0
    """Slots of every group, among its `slots` and its floor, that no request gets."""
    aligned: bool = False
    """Whether every segment ends on a granule; floors are what is needed, and slots at least those, rounded up."""

    def alignment(self, group: int) -> int:
        """Smallest step of slots at which every segment of a pool group ends on a granule."""
        return Footprint(self.layout, self.granule, self.arrangement).alignment(group)

    def adjusted(
        self,
        quota: int | None = None,
        *,
        pool_ratio: Sequence[float] | None = None,
        typical_step: Batch | None = None,
        at_least: Sequence[int] | None = None,
    ) -> Plan:
        """The plan for another quota or another split, on the same floors.

        Requests that were fitted once are not fitted again: a cache that serves them has promised their lengths.

        Parameters
        ----------
        quota : int, optional
            Bytes; None keeps the present one.
        pool_ratio : sequence of float, optional
            One weight per life cycle, as for `plan`.
        typical_step : Batch, optional
            As for `plan`. Without either, the split's weights stay.
        at_least : sequence of int, optional
            Slots per pool group that stay if the quota has room for all of them. A split for a few bytes more may give
            a group many slots fewer, where another then has room for one more of its own.

        Raises
        ------
        QuotaError
            The quota is below the floors.
        ConfigError
            An argument is wrong.
        """
        quota = self.quota if quota is None else as_size("quota", quota, minimum=1)
        footprint = footprint_of(self.layout, self.granule, self.arrangement, self.aligned)
        weights = self.weights
        if pool_ratio is not None:
            weights = Weights(tuple(ratio_weights(self.layout, pool_ratio)), explicit=True)
        elif typical_step is not None:
            if not isinstance(typical_step, Batch):
                raise ConfigError("typical_step", typical_step, "must be a Batch")
            slots = Demand(self.layout, self.scratch_rewind).of(typical_step)
            weights = Weights(tuple(slot_weights(footprint, slots, self.reserved_slots)), explicit=False)
        return with_slots(self, footprint, quota, weights, at_least=at_least)


def with_slots(
    plan: Plan,
    footprint: Footprint,
    quota: int | None,
    weights: Weights,
    grow: bool = False,
    at_least: Sequence[int] | None = None,
) -> Plan:
    """`plan` with slots for `quota`, its floors as they are."""
    floors = [group.min_slots for group in plan.groups]
    slots, usable = floors, None
    if quota is not None:
        usable = align_down(quota, plan.granule)
        if plan.min_nbytes > usable and not grow:
            raise over_quota(plan.groups, footprint, quota, needed=plan.min_nbytes, cause="fixed")
        budget = max(usable, plan.min_nbytes) // plan.granule
        if at_least is not None:
            kept = list(map(max, floors, at_least))
            floors = kept if footprint.total(kept) <= budget else floors
        fill = plan.aligned or plan.arrangement != "block-major"
        slots = split(plan.layout, footprint, budget, floors, weights.groups, weights.explicit, fill=fill)
    slots = footprint.counted(slots)
    groups = tuple(
        group._replace(slots=number, nbytes=footprint.granules(index, number) * plan.granule)
        for index, (group, number) in enumerate(zip(plan.groups, slots, strict=True))
    )
    nbytes = sum(group.nbytes for group in groups)
    return plan._replace(quota=quota, usable=usable, groups=groups, nbytes=nbytes, weights=weights)


def over_quota(groups: Sequence[GroupPlan], footprint: Footprint, quota: int, *, needed: int, cause: str) -> QuotaError:
    """The refusal of a quota that is below what is needed, which says whose floor takes most."""
    granule = footprint.granule
    usable = align_down(quota, granule)
    floors = [footprint.granules(index, group.min_slots) for index, group in enumerate(groups)]
    largest = floors.index(max(floors))
    set_by = groups[largest].set_by
    return QuotaError(
        f"{_CAUSES[cause]}: {needed} bytes ({format_bytes(needed)}) needed, {usable} ({format_bytes(usable)}) usable of"
        f" the {quota} configured, in granules of {granule}; {needed - usable} short. Most of it,"
        f" {floors[largest] * granule} bytes, is for pool group {largest}, as "
        + ("the layout itself asks" if set_by is None else f"constraints[{set_by}] asks")
        + f". {_CURES[cause].format(needed=needed)}",
        needed=needed,
        usable=usable,
        configured=quota,
        cause=cause,
        group=largest,
        constraint=set_by,
    )


_CAUSES = {
    "fixed": "floors of the layout and requests that may not shrink exceed the quota by themselves",
    "lower_bound": "FIT_TO_QUOTA requests exceed the quota even at their lower bounds",
}
_CURES = {
    "fixed": "Raise the quota to {needed}, declare fewer or shorter requests, mark them FIT_TO_QUOTA, or allow growth",
    "lower_bound": "Raise the quota to {needed}, or declare requests that write less in one step, or fewer of them",
}
