"""Plans with other slots than the planner chose: agreed on over ranks, asked for by hand, cut to what is reserved."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Final

from vmmcache.cache.fitting import PlanInputs
from vmmcache.errors import PlanError
from vmmcache.planning import Batch, Plan, PlanWarning, Reduction
from vmmcache.planning.fit import reduced
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.notices import Binding
from vmmcache.planning.result import Weights
from vmmcache.planning.split import slot_weights

__all__ = ["check_floors", "plan_for", "split_like", "with_counts"]

_CURE: Final = "Raise budget.slots, or declare fewer or shorter requests"


def plan_for(inputs: PlanInputs, counts: Sequence[int], nbytes: int) -> Plan:
    """The plan for `counts` slots that the caller stated, which take `nbytes` (S12).

    FIT_TO_QUOTA is fitted to what each group has, not to the bytes of all of them: those round up to the granule, and
    one group's slots are no use to another.

    Raises
    ------
    PlanError
        What was declared does not fit into them; names the pool group, the constraint and the cure.
    """
    asked = inputs.plan()
    if _within(asked, counts):
        return inputs.plan(nbytes)
    block = inputs.layout.tokens_per_block
    longest = max((each.capacity for batch in inputs.constraints for each in batch.requests), default=0)
    low, high = 0, -(-longest // block)
    while low < high - 1:
        middle = (low + high) // 2
        if _within(_cut(inputs, middle * block).plan(), counts):
            low = middle
        else:
            high = middle
    shorter = _cut(inputs, low * block)
    check_floors(shorter.plan(), counts, _CURE)
    plan = shorter.plan(nbytes)
    reductions = tuple(_reductions(inputs.constraints, shorter.constraints))
    for batch, place, capacity, history in reductions:
        warnings.warn(
            f"constraints[{batch}].requests[{place}] reduced to fit {list(counts)} slots: capacity {capacity[0]} ->"
            f" {capacity[1]}, history_length {history[0]} -> {history[1]} tokens",
            PlanWarning,
            stacklevel=2,
        )
    return plan._replace(reductions=reductions, binding=_binding(asked, counts))


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


def _within(plan: Plan, counts: Sequence[int]) -> bool:
    return all(group.min_slots <= number for group, number in zip(plan.groups, counts, strict=True))


def _cut(inputs: PlanInputs, level: int) -> PlanInputs:
    """With the requests that may shrink at a level, as `vmmcache.planning.fit` has it."""
    constraints = tuple(
        Batch([reduced(each, batch.system_prompt_length, level) for each in batch.requests], batch.system_prompt_length)
        for batch in inputs.constraints
    )
    return inputs._replace(constraints=constraints)


def _reductions(asked: Sequence[Batch], resolved: Sequence[Batch]) -> Iterator[Reduction]:
    for batch, (before, after) in enumerate(zip(asked, resolved, strict=True)):
        for place, (old, new) in enumerate(zip(before.requests, after.requests, strict=True)):
            if old != new:
                lengths = (old.capacity, new.capacity), (old.history_length, new.history_length)
                yield Reduction(batch, place, *lengths)


def _binding(asked: Plan, counts: Sequence[int]) -> Binding:
    footprint = Footprint(asked.layout, asked.granule, asked.arrangement)
    short = [
        max(0, footprint.granules(index, group.min_slots) - footprint.granules(index, number)) * asked.granule
        for index, (group, number) in enumerate(zip(asked.groups, counts, strict=True))
    ]
    group = short.index(max(short))
    return Binding(group, asked.groups[group].set_by, sum(short))
