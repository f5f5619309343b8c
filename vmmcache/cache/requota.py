"""More or less memory while requests are served (S15): all or nothing, here and on all ranks.

The floors stay what they were (I12): a quota below them is refused, and nothing is fitted again. Where what is there
fits, no group loses a slot, so a cache that grows is not refused for the requests it serves. Where slots become
fewer, contents move down first and nobody gets the slots that go; then memory changes; then whatever is new is handed
out. A connector that takes segments only whole, and every connector where memory goes, registers anew in between.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vmmcache.cache.agreement import all_or_none, answers_of
from vmmcache.cache.core import Core
from vmmcache.cache.counts import check_floors, with_counts
from vmmcache.cache.noting import noting
from vmmcache.cache.ranks import Measurement, measurement_of, merge_measurements
from vmmcache.cache.rejoining import rejoining
from vmmcache.errors import ConfigError, LeaseError, OutOfDeviceMemory, VmmCacheError
from vmmcache.memory.undo import UndoStack
from vmmcache.planning import Plan
from vmmcache.units import as_count, format_bytes

__all__ = ["resize"]

_log: Final = logging.getLogger(__name__)


def resize(core: Core, quota: int) -> Plan:
    """Give the cache another quota. See `KVCacheManager.resize`."""
    error: VmmCacheError | None = None
    numbers: list[int] = []
    plan = core.path.plan
    try:
        plan = _adjusted(core, as_count("quota", quota, minimum=1))
        numbers = _measurement(core, plan).to_ints()
    except VmmCacheError as refusal:
        error = refusal
    answers = answers_of(core.ranks, "resize: plan", error, numbers)
    all_or_none(answers, "resize: plan", error)
    agreed = Measurement.from_ints(merge_measurements([answer.numbers for answer in answers]))
    counts = tuple(group.slots for group in agreed.seen_by(_measurement(core, plan)).groups)
    with UndoStack() as undo:
        undo.push(rejoining(core, "resize"))
        try:
            agreed.check_usable()
            plan = with_counts(plan, counts)
            check_floors(plan, counts, "Raise the quota")
            _change(core, counts, undo)
        except VmmCacheError as refusal:
            error = refusal
        all_or_none(answers_of(core.ranks, "resize: commit", error), "resize: commit", error)
        undo.callback(core.slots.set_counts, core.slots.counts)
        core.slots.set_counts(counts)
        core.path.plan = core.path.final = plan
        undo.commit()
    return plan


def _adjusted(core: Core, quota: int) -> Plan:
    path = core.path
    plan = path.plan.adjusted(quota, at_least=path.backing.slots)
    most = path.most()
    counts = tuple(map(min, (group.slots for group in plan.groups), most))
    for index, (group, number) in enumerate(zip(plan.groups, most, strict=True)):
        if group.slots > number and quota > path.pools.footprint(most):
            raise ConfigError(
                "quota",
                quota,
                f"is {group.slots} slots of pool group {index}, and addresses are reserved for {number}: make the "
                "manager with a larger utilization or size",
            )
    return with_counts(plan, counts)


def _measurement(core: Core, plan: Plan) -> Measurement:
    path = core.path
    return measurement_of(
        core.settings.layout,
        path.mode,
        [group.slots for group in plan.groups],
        path.most(),
        path.pools.alignments if path.aligned else None,
    )


def _change(core: Core, counts: Sequence[int], undo: UndoStack) -> None:
    """Bring memory to `counts`, and slots to those that are there before and after."""
    backing, registrations = core.path.backing, core.registrations
    # What is handed out, which may be more than there is after a driver has refused to undo.
    before = core.slots.counts
    lower = tuple(map(min, before, counts))
    core.slots.set_counts(lower)
    anew = bool(registrations) and (lower != before or registrations.whole or not backing.addresses_stay)
    defragment = anew and backing.addresses_stay

    def back() -> None:
        registrations.release()
        backing.commit(before, defragment=defragment)
        registrations.register()

    undo.push(noting(back))
    if anew:
        registrations.release()
    backing.commit(counts, defragment=defragment)
    if anew:
        registrations.register()
    elif registrations:
        registrations.refresh()
    else:
        _trim(core)


def _trim(core: Core) -> None:
    """Give back also what straddles the cut, where there is room for the copy; else it stays, and is counted."""
    try:
        core.path.backing.trim()
    except (OutOfDeviceMemory, LeaseError) as refusal:
        kept = core.path.backing.physical_bytes - core.path.pools.footprint(core.path.backing.slots)
        _log.warning("%s: %s more than was planned stay mapped: %s", core.path.device, format_bytes(kept), refusal)
