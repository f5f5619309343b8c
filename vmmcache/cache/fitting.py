"""The plan for the bytes that a cache gets, and why there is none where it does not fit.

A plan is always made afresh from what the caller declared (S4): floors and cuts of an earlier, smaller pool are not
inherited. Requests marked FIT_TO_QUOTA are fitted here, to the bytes that are really there; everything else fits as it
was declared, or the plan is refused (S3).
"""

from __future__ import annotations

from typing import NamedTuple

from vmmcache.cache.budget import MemoryBudget
from vmmcache.cache.sizing import Budget
from vmmcache.errors import PlanError, QuotaError
from vmmcache.planning import Batch, CacheLayout, Plan, Request, longest_request, plan
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.layout import Arrangement
from vmmcache.planning.result import with_slots
from vmmcache.units import format_bytes

__all__ = ["AlignmentLoss", "PlanInputs", "alignment_loss", "fit"]


class PlanInputs(NamedTuple):
    """What a plan is made of, all but the bytes. As for `vmmcache.planning.plan`."""

    layout: CacheLayout
    granule: int
    arrangement: Arrangement = "block-major"
    constraints: tuple[Batch, ...] = ()
    typical_step: Batch | None = None
    pool_ratio: tuple[float, ...] | None = None
    max_util_for_resume: float = 0.97
    scratch_rewind: int | None = None
    sustained: bool = False
    null_block: bool = False
    """Slot 0 of every group belongs to no request (S13)."""

    def plan(self, quota: int | None = None, *, aligned: bool = False, allow_growth: bool = False) -> Plan:
        """The plan for a number of bytes; None asks for the floors."""
        return plan(
            self.layout,
            quota,
            self.granule,
            constraints=self.constraints,
            typical_step=self.typical_step,
            pool_ratio=self.pool_ratio,
            max_util_for_resume=self.max_util_for_resume,
            scratch_rewind=self.scratch_rewind,
            arrangement=self.arrangement,
            sustained=self.sustained,
            allow_growth=allow_growth,
            reserved_slots=int(self.null_block),
            aligned=aligned,
        )

    def longest(self, quota: int) -> int:
        """Tokens of the longest single request that so many bytes could hold, whatever was declared."""
        if quota < self._replace(constraints=()).plan().min_nbytes:
            return 0  # the planner answers for the floors, below which no cache is made
        return longest_request(
            self.layout,
            quota,
            self.granule,
            typical_step=self.typical_step,
            pool_ratio=self.pool_ratio,
            max_util_for_resume=self.max_util_for_resume,
            scratch_rewind=self.scratch_rewind,
            arrangement=self.arrangement,
            reserved_slots=int(self.null_block),
        )


class AlignmentLoss(NamedTuple):
    """What is given up because every segment has to end on a granule."""

    slots: tuple[int, ...]
    """Per pool group."""
    nbytes: int


def fit(inputs: PlanInputs, nbytes: int, aligned: bool = False, budget: Budget | None = None) -> Plan:
    """The final plan for `nbytes`: most slots whose footprint, each segment rounded up to the granule, fits.

    Parameters
    ----------
    inputs : PlanInputs
        What the caller declared, as declared.
    nbytes : int
        What the cache gets, or what the ranks agreed on.
    aligned : bool, default False
        Only counts at which every segment starts and ends on a granule, for connectors. Floors round up to them.
    budget : Budget, optional
        Where the bytes come from, so that an error names what can be turned; None where the caller stated them.

    Raises
    ------
    QuotaError
        The declared workload does not fit. Names the request that asks for most, and what helps; raising the
        utilization is among it only where it is below 1 and the device has more.
    PlanError
        There is nothing to fit into, or a floor cannot be numbered.
    """
    if nbytes < 1:
        raise PlanError(f"{_origin(nbytes, budget)}, and so there is no slot at all. {_cures(budget)}")
    try:
        return inputs.plan(nbytes, aligned=aligned)
    except QuotaError as refusal:
        raise _refused(inputs, nbytes, aligned, budget, refusal) from None


def alignment_loss(plan: Plan) -> AlignmentLoss:
    """What `plan` gives up against one of the same bytes, floors and split, but with any count of slots (S3)."""
    if not plan.aligned or plan.quota is None:
        return AlignmentLoss((0,) * len(plan.groups), 0)
    footprint = Footprint(plan.layout, plan.granule, plan.arrangement)
    least = footprint.total([group.min_slots for group in plan.groups]) * plan.granule
    free = with_slots(plan._replace(aligned=False, min_nbytes=least), footprint, plan.quota, plan.weights)
    lost = tuple(max(0, more.slots - less.slots) for more, less in zip(free.groups, plan.groups, strict=True))
    return AlignmentLoss(lost, max(0, free.nbytes - plan.nbytes))


def _refused(inputs: PlanInputs, nbytes: int, aligned: bool, budget: Budget | None, refusal: QuotaError) -> QuotaError:
    """The planner's refusal, in the words of whoever can turn utilization, margin and workload."""
    group = refusal.group or 0
    text = f"{_origin(nbytes, budget)}, {refusal.usable} in whole granules, and {refusal.needed} are needed"
    text += f" ({format_bytes(refusal.needed - refusal.usable)} more). Most of it is for "
    if refusal.constraint is None:
        text += f"pool group {group}, without which no request runs at all"
    else:
        text += f"{_request(inputs, refusal.constraint)}, in pool group {group}"
    longest = inputs.longest(nbytes)
    text += f"; the longest single request that fits has {longest} tokens. {_cures(budget)}"
    if aligned:
        step = inputs.plan(aligned=True).alignment(group)
        text += f". Connectors take slots of pool group {group} in steps of {step}: without one less is needed"
    return QuotaError(
        text,
        needed=refusal.needed,
        usable=refusal.usable,
        configured=nbytes,
        cause=refusal.cause,
        group=refusal.group,
        constraint=refusal.constraint,
    )


def _request(inputs: PlanInputs, place: int) -> str:
    """The longest request of a constraint, which is what one can shorten."""
    batch = inputs.constraints[place]
    index = max(range(len(batch.requests)), key=lambda each: batch.requests[each].capacity)
    request: Request = batch.requests[index]
    copies = f", {request.count} of them" if request.count > 1 else ""
    return f"constraints[{place}].requests[{index}], {request.capacity} tokens{copies}"


def _origin(nbytes: int, budget: Budget | None) -> str:
    told = f"{nbytes} bytes ({format_bytes(nbytes)})"
    if budget is None:
        return f"the cache was given {told}"
    used = f"{format_bytes(budget.non_kv)} used beside it, {format_bytes(budget.transient_peak)} in passing"
    kept = f", {format_bytes(budget.margin)} margin" if budget.mode == "measured" else ""
    if budget.graph_estimate:
        kept += f", {format_bytes(budget.graph_estimate)} for graphs"
    return (
        f"the cache gets {told} of {format_bytes(budget.total)} ({budget.mode}: utilization"
        f" {float(budget.utilization):g}, {format_bytes(budget.headroom)} free for it, {used}{kept})"
    )


def _cures(budget: Budget | None) -> str:
    """What helps. Not to raise a utilization of 1, nor one that does not bind."""
    knobs = ["declare shorter or fewer requests", "mark long ones FIT_TO_QUOTA"]
    if budget is None:
        return f"Give it more bytes or slots, {knobs[0]}, or {knobs[1]}"
    if budget.limited_by == "utilization" and budget.utilization < 1:
        knobs.append(f"raise utilization above {float(budget.utilization):g}")
    if budget.mode == "measured" and budget.margin:
        default = MemoryBudget()
        knobs.append(
            f"lower margin_fraction or margin_floor (defaults {default.margin_fraction} and"
            f" {format_bytes(default.margin_floor)})"
        )
    if budget.graph_estimate:
        knobs.append("lower graph_estimate")
    if budget.limited_by == "memory":
        knobs.append("free memory that others hold on the device")
    knobs.append("run smaller steps, which need less in passing")
    text = "; ".join(knobs)
    return text[0].upper() + text[1:]
