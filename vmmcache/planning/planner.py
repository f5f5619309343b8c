"""`plan`: layout + workload + bytes -> slots per pool group.

A function of its arguments and nothing else: no driver, device, clock or environment. The same plan serves a cache
whose budget was measured and one whose budget was estimated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from vmmcache.errors import ConfigError, PlanError
from vmmcache.planning.demand import Demand
from vmmcache.planning.fit import LevelSearch, Workload
from vmmcache.planning.floors import ResumeHeadroom, resume_share, structural_floors
from vmmcache.planning.footprint import footprint_of
from vmmcache.planning.layers import items_of
from vmmcache.planning.layout import Arrangement, CacheLayout, as_arrangement
from vmmcache.planning.limits import MAX_SLOTS, as_size
from vmmcache.planning.notices import PlanWarning, Reduction
from vmmcache.planning.problem import AS_ASKED, Floors, Problem
from vmmcache.planning.result import GroupPlan, Plan, Weights, over_quota, with_slots
from vmmcache.planning.split import ratio_weights, slot_weights
from vmmcache.planning.workload import Batch, Request
from vmmcache.units import MIB, align_down

__all__ = ["plan"]

# The load that decides the split where nothing is known: one request of two thousand tokens that decodes.
FALLBACK_STEP = Batch([Request(2049, 2048)])


def plan(
    layout: CacheLayout,
    quota: int | None = None,
    granule: int = 2 * MIB,
    *,
    constraints: Iterable[Batch] | None = None,
    typical_step: Batch | None = None,
    pool_ratio: Sequence[float] | None = None,
    max_util_for_resume: float = 0.97,
    scratch_rewind: int | None = None,
    arrangement: Arrangement = "block-major",
    sustained: bool = False,
    token_exact: bool = False,
    allow_growth: bool = False,
    reserved_slots: int = 0,
    aligned: bool = False,
) -> Plan:
    """Plan the pools of a cache.

    Constraints are batches that must always fit: they become floors, which later changes of quota and split keep. What
    the quota has beyond the floors is split by `pool_ratio`, else by what `typical_step` takes, else by the floors,
    else by one request of 2048 tokens. Planned bytes are those that memory really maps, and stay within the quota.

    Parameters
    ----------
    layout : CacheLayout
        Layers of this rank.
    quota : int, optional
        Bytes for the whole cache; None asks for the demand only, and plans the floors.
    granule : int, default 2 MiB
        Bytes in which memory is mapped. Usable is the quota rounded down to it.
    constraints : iterable of Batch, optional
        Requests marked FIT_TO_QUOTA shrink until everything fits; see `vmmcache.planning.fit`.
    typical_step : Batch, optional
        A typical load; decides the split only.
    pool_ratio : sequence of float, optional
        One positive weight per life cycle, sum 1; decides the split only.
    max_util_for_resume : float, default 0.97
        Share of a group's slots up to which suspended requests are resumed. Constraints are divided by it.
    scratch_rewind : int, optional
        Tokens that a step may take back, with scratch reuse of windowed layers on; None is off.
    arrangement : "block-major" or "layer-major"
        Whether a pool is one segment, or one for each layer that rounds to the granule by itself.
    sustained : bool, default False
        Size windowed layers in constraints for every phase of the window, not for the moment described.
    token_exact : bool, default False
        Fit to the token, not to the block.
    allow_growth : bool, default False
        Exceed the quota where the floors do, instead of refusing; not together with FIT_TO_QUOTA.
    reserved_slots : int, default 0
        Slots of every pool group that no request gets, for example 1 where slot 0 is a null block (S13). They are in
        floors and in slots, on top of what requests need and resuming takes, and not in ``demand``.
    aligned : bool, default False
        Only counts at which every segment starts and ends on a granule, as what is registered with a NIC must (I10).

    Returns
    -------
    Plan

    Warns
    -----
    PlanWarning
        Once for each reduced entry of a batch; and for max_util_for_resume of 0.

    Raises
    ------
    ConfigError
        An argument is wrong.
    QuotaError
        The workload does not fit. ``cause`` is "fixed" where floors and unmarked requests alone do not, else
        "lower_bound". ``needed`` is a quota that would do.
    PlanError
        A constraint needs more than 2^31 - 1 slots.
    """
    if not isinstance(layout, CacheLayout):
        raise ConfigError("layout", layout, "must be a CacheLayout")
    if quota is not None:
        quota = as_size("quota", quota, minimum=1)
    granule = as_size("granule", granule, minimum=1)
    if scratch_rewind is not None:
        scratch_rewind = as_size("scratch_rewind", scratch_rewind, unit="tokens")
    reserved = as_size("reserved_slots", reserved_slots, maximum=MAX_SLOTS, unit="slots")
    batches = () if constraints is None else items_of("constraints", constraints, Batch, "Batch")
    share = resume_share(max_util_for_resume)
    demand = Demand(layout, scratch_rewind, sustained)
    problem = Problem(
        layout,
        footprint_of(layout, granule, as_arrangement(arrangement), bool(aligned)),
        ResumeHeadroom(layout, share, reserved),
        structural_floors(layout, reserved),
        batches,
        [Workload(demand, batch) for batch in batches],
    )
    if problem.shrinks and allow_growth:
        raise ConfigError("allow_growth", True, "growth exceeds the quota, FIT_TO_QUOTA keeps within it: choose one")
    weights = _weights(problem, scratch_rewind, reserved, typical_step, pool_ratio)

    level = AS_ASKED
    if problem.shrinks and quota is not None:
        level = _fitted(
            problem, quota, problem.search(quota, token_exact=token_exact, saves_scratch=demand.saves_scratch)
        )
    floors = problem.floors(level)
    problem.check_numbers(floors)
    resolved, reductions = problem.resolved(level)
    if weights is None:
        weights = Weights(tuple(slot_weights(problem.footprint, floors.slots)), explicit=False)
    min_nbytes = problem.footprint.total(floors.slots) * granule
    binding = None
    if quota is not None and reductions:
        usable = align_down(quota, granule)
        binding = problem.binding(floors, usable)
        for reduction in reductions:
            warnings.warn(_told(reduction, quota, usable), PlanWarning, stacklevel=2)
    draft = Plan(
        layout=layout,
        arrangement=arrangement,
        granule=granule,
        quota=None,
        usable=None,
        groups=_groups(problem, floors),
        nbytes=min_nbytes,
        min_nbytes=min_nbytes,
        demand=tuple(tuple(need) for need in floors.needs),
        resolved_constraints=resolved,
        reductions=reductions,
        binding=binding,
        weights=weights,
        resume_share=share,
        scratch_rewind=scratch_rewind,
        reserved_slots=reserved,
        aligned=bool(aligned),
    )
    return with_slots(draft, problem.footprint, quota, weights, grow=allow_growth)


def _weights(
    problem: Problem,
    scratch_rewind: int | None,
    reserved: int,
    typical_step: Batch | None,
    pool_ratio: Sequence[float] | None,
) -> Weights | None:
    """Weights of the split, or None where the floors decide."""
    if typical_step is not None and not isinstance(typical_step, Batch):
        raise ConfigError("typical_step", typical_step, "must be a Batch")
    if pool_ratio is not None:
        return Weights(tuple(ratio_weights(problem.layout, pool_ratio)), explicit=True)
    if typical_step is None and problem.batches:
        return None
    # At the moment described, also where constraints are sustained: a typical load is at every phase of its windows.
    slots = Demand(problem.layout, scratch_rewind).of(FALLBACK_STEP if typical_step is None else typical_step)
    return Weights(tuple(slot_weights(problem.footprint, slots, reserved)), explicit=False)


def _groups(problem: Problem, floors: Floors) -> tuple[GroupPlan, ...]:
    """What every group gets at its floor."""
    cycles = problem.layout.life_cycles
    return tuple(
        GroupPlan(
            life_cycles=tuple(cycles[cycle] for cycle in group.life_cycles),
            slot_bytes=group.slot_bytes,
            min_slots=floors.slots[index],
            slots=floors.slots[index],
            nbytes=problem.footprint.granules(index, floors.slots[index]) * problem.footprint.granule,
            segments=problem.footprint.segments[index],
            set_by=floors.set_by[index],
        )
        for index, group in enumerate(problem.layout.groups)
    )


def _fitted(problem: Problem, quota: int, search: LevelSearch) -> int:
    """The level that a search finds."""
    level = search.highest()
    if level is None:
        raise _does_not_fit(problem, search, quota)
    return level


def _does_not_fit(problem: Problem, search: LevelSearch, quota: int) -> PlanError:
    """Why no level fits."""
    floors = problem.floors(search.bottom)
    granule = problem.footprint.granule
    fixed = problem.fixed_floors()
    problem.check_numbers(fixed)
    if search.least is None:
        problem.check_numbers(floors)
    alone = problem.footprint.total(fixed.slots) > quota // granule
    needed = (search.least or 0) * granule
    groups = _groups(problem, floors)
    return over_quota(groups, problem.footprint, quota, needed=needed, cause="fixed" if alone else "lower_bound")


def _told(reduction: Reduction, quota: int, usable: int) -> str:
    old, new = reduction.capacity
    old_history, new_history = reduction.history_length
    return (
        f"constraints[{reduction.batch}].requests[{reduction.request}] reduced to fit the quota:"
        f" capacity {old} -> {new}, history_length {old_history} -> {new_history} tokens;"
        f" quota {quota} bytes configured, {usable} usable"
    )
