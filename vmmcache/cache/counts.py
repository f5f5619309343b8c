"""Plans with other slots than the planner chose: agreed on over ranks, asked for by hand, cut to what is reserved."""

from __future__ import annotations

from collections.abc import Sequence

from vmmcache.errors import PlanError
from vmmcache.planning import Plan
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.result import Weights
from vmmcache.planning.split import slot_weights

__all__ = ["check_floors", "split_like", "with_counts"]


def with_counts(plan: Plan, counts: Sequence[int]) -> Plan:
    """`plan` with `counts` slots, and the bytes that those take (I11)."""
    footprint = Footprint(plan.layout, plan.granule, plan.arrangement)
    groups = tuple(
        group._replace(slots=number, nbytes=footprint.granules(index, number) * plan.granule)
        for index, (group, number) in enumerate(zip(plan.groups, counts, strict=True))
    )
    return plan._replace(groups=groups, nbytes=sum(group.nbytes for group in groups))


def split_like(plan: Plan, counts: Sequence[int]) -> Plan:
    """`plan`, which from now on splits another quota in the proportions of `counts`."""
    footprint = Footprint(plan.layout, plan.granule, plan.arrangement)
    return plan._replace(weights=Weights(tuple(slot_weights(footprint, counts)), explicit=False))


def check_floors(plan: Plan, counts: Sequence[int], cure: str) -> None:
    """See that what was declared still fits into `counts` slots (I13, S3).

    Raises
    ------
    PlanError
        It does not; names the pool group, the constraint and `cure`.
    """
    for index, (group, number) in enumerate(zip(plan.groups, counts, strict=True)):
        if number < group.min_slots:
            asked = "the layout itself" if group.set_by is None else f"constraints[{group.set_by}]"
            request = ""
            if group.set_by is not None:
                batch = plan.resolved_constraints[group.set_by]
                longest = max(batch.requests, key=lambda entry: entry.capacity, default=None)
                request = f" (its longest request: {longest.capacity} tokens)" if longest else ""
            raise PlanError(
                f"pool group {index} has {number} slots and {asked}{request} needs {group.min_slots}, a block of "
                f"{plan.layout.tokens_per_block} tokens each: {group.min_slots - number} short. {cure}"
            )
