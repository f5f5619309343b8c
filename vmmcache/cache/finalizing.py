"""From what was measured to memory that is there: measure, agree, commit, register; or everything as it was.

Memory can disappear between measuring and committing: the device has other users. Then the ranks, all of them, go back
to what they had, and measure again, a bounded number of times; each time the rank that was short leaves aside what it
was short of, and at least a margin more. An engine that carries the numbers itself sees OutOfDeviceMemory from `apply`,
with the cache as it was, and does the same: have all ranks `measure` again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vmmcache.cache.agreement import all_or_none, answers_of
from vmmcache.cache.core import Core
from vmmcache.cache.counts import check_floors, with_counts
from vmmcache.cache.noting import noting
from vmmcache.cache.path import Found
from vmmcache.cache.ranks import Measurement, measurement_of, merge_measurements
from vmmcache.cache.rejoining import rejoining
from vmmcache.cache.report import Registered, SizingReport, group_sizes, warm_up_fields
from vmmcache.cache.sizing import default_estimate
from vmmcache.errors import OutOfDeviceMemory, VmmCacheError
from vmmcache.memory.undo import UndoStack
from vmmcache.planning import Batch, ConstraintPolicy, Plan, Reduction, Request

__all__ = ["ATTEMPTS", "Finalizer"]

_log: Final = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""How often `finalize` measures before it gives up, where memory disappears each time."""

_SHRINK: Final = "Give the ranks more memory, or declare fewer or shorter requests"


class _Again(VmmCacheError):
    """All ranks are as they were, and try again."""


class Finalizer:
    """The end of one manager's warm-up."""

    def __init__(self, core: Core) -> None:
        self._core: Final = core
        self._found: Found | None = None
        self._withheld = 0
        self._measured = False

    def finalize(self) -> SizingReport:
        """All of it, with one exchange for the numbers and one for whether it went well everywhere."""
        for _ in range(1, ATTEMPTS):
            try:
                return self._attempt(last=False)
            except _Again as again:
                for note in (str(again), *getattr(again, "__notes__", ())):
                    _log.warning("%s: %s", self._core.path.device, note)
        return self._attempt(last=True)

    def _attempt(self, *, last: bool) -> SizingReport:
        """All of it once. `_Again` where a rank lacked memory and it is not the last time."""
        core = self._core
        error: VmmCacheError | None = None
        numbers: list[int] = []
        try:
            numbers = self.measure()
        except VmmCacheError as refusal:
            error = refusal
        answers = answers_of(core.ranks, "finalize: measure", error, numbers)
        all_or_none(answers, "finalize: measure", error)
        # The same lists on every rank, so the same numbers, or the same error.
        agreed = merge_measurements([answer.numbers for answer in answers])
        with UndoStack() as undo:
            undo.push(rejoining(core, "finalize"))
            try:
                report = self._apply(agreed, undo)
            except VmmCacheError as refusal:
                error = refusal
            answers = answers_of(core.ranks, "finalize: commit", error)
            refusals = [answer for answer in answers if answer.refusal is not None]
            if refusals and not last and all(answer.kind == "memory" for answer in refusals):
                raise _Again(f"memory disappeared while it was committed, measuring again: {refusals[0].refusal}")
            all_or_none(answers, "finalize: commit", error)
            undo.commit()
        return report

    def measure(self) -> list[int]:
        """What this rank can hold, as `merge_measurements` takes it. Nothing is committed."""
        core = self._core
        path = core.path
        # The first time, what another manager of the device has measured will do.
        again, self._measured = self._measured, True
        self._found = found = path.measure(self._withheld, again=again)
        core.snapshots[:] = [each for each in core.snapshots if each.stage != "warm"] + [found.snapshot]
        return measurement_of(
            core.settings.layout,
            path.mode,
            [group.slots for group in found.plan.groups],
            path.most(),
            path.pools.alignments if path.aligned else None,
            _capacities(core.settings.constraints, found.plan),
        ).to_ints()

    def apply(self, numbers: Sequence[int]) -> SizingReport:
        """Commit what was agreed on, and register it. After an error everything is as it was before."""
        with UndoStack() as undo:
            undo.push(noting(self._core.follow))
            report = self._apply(numbers, undo)
            undo.commit()
        return report

    def _apply(self, numbers: Sequence[int], undo: UndoStack) -> SizingReport:
        """The same; `undo` takes back what it does to memory, also where it fails itself. Slots then follow memory."""
        core = self._core
        path = core.path
        if self._found is None:
            self.measure()
        assert self._found is not None
        plan = self._agreed(self._found.plan, numbers)
        counts = tuple(group.slots for group in plan.groups)
        before = path.backing.slots
        undo.push(noting(lambda: path.back_to(before)))
        try:
            # Nobody gets a slot while what is behind it goes and comes, and nobody has one.
            core.slots.set_counts((0,) * len(counts))
            path.commit(counts)
        except OutOfDeviceMemory as error:
            self._withhold(error)
            raise
        if core.registrations:
            undo.push(noting(core.registrations.close))
            core.registrations.register()
        core.slots.set_counts(counts)
        earlier, path.plan, path.final = (path.plan, path.final), plan, plan
        undo.callback(self._forget, *earlier)
        core.snapshot("final")
        return self._report(plan)

    def _agreed(self, own: Plan, numbers: Sequence[int]) -> Plan:
        """This rank's plan with the numbers that all ranks agreed on."""
        core = self._core
        path = core.path
        mine = measurement_of(
            core.settings.layout, path.mode, [group.slots for group in own.groups], path.most(), None, ()
        )
        agreed = Measurement.from_ints(numbers, "numbers").seen_by(mine)
        agreed.check_usable()
        counts = [group.slots for group in agreed.groups]
        plan = own
        if agreed.capacities != _capacities(core.settings.constraints, own):
            constraints = _cut(core.settings.constraints, agreed.capacities)
            # All of them fitted before, at least as long.
            plan = path.inputs._replace(constraints=constraints).plan(own.quota, aligned=path.aligned)
            plan = plan._replace(reductions=_reductions(core.settings.constraints, plan.resolved_constraints))
        if counts != [group.slots for group in plan.groups]:
            plan = with_counts(plan, counts)
        check_floors(plan, counts, _SHRINK)
        return plan

    def _withhold(self, error: OutOfDeviceMemory) -> None:
        found = self._found
        margin = 0 if found is None or found.budget is None else found.budget.margin
        short = error.requested - (error.free or 0)
        self._withheld += max(short, margin, self._core.path.pools.granule)

    def _forget(self, plan: Plan, final: Plan | None) -> None:
        self._core.path.plan, self._core.path.final = plan, final

    def _report(self, plan: Plan) -> SizingReport:
        core, found = self._core, self._found
        path = core.path
        assert found is not None
        estimate = None
        if path.mode == "measured" and found.budget is not None:
            estimate = default_estimate(core.shared.budget, core.shared.start, found.snapshot, core.shared.peak)
        return SizingReport(
            mode=path.mode,
            fallback_reason=core.fallback_reason,
            sized_by=core.settings.budget.sized_by(path.mode),
            device=path.device,
            memory_source=found.snapshot.source,
            settings=core.settings.budget if core.settings.budget.manual else core.shared.budget,
            snapshots=(core.shared.start, *core.snapshots),
            budget=found.budget,
            others=found.others,
            withheld=found.withheld,
            estimate=estimate,
            peak_source=path.reader.peak_source,
            granule=path.pools.granule,
            groups=group_sizes(plan, path.most(), found.lost.slots),
            nbytes=plan.nbytes,
            alignment_loss=found.lost.nbytes,
            reductions=plan.reductions,
            rank=core.ranks.rank,
            ranks=core.ranks.size,
            registered=tuple(
                Registered(each.connector.name, len(each.parts), each.parts.nbytes) for each in core.registrations.held
            ),
            **warm_up_fields(core.log),
        )


def _marked(constraints: Sequence[Batch]) -> list[tuple[int, int]]:
    """Where the requests are that may shrink: batch and place in it."""
    return [
        (batch, place)
        for batch, entry in enumerate(constraints)
        for place, request in enumerate(entry.requests)
        if request.policy is ConstraintPolicy.FIT_TO_QUOTA
    ]


def _reductions(asked: Sequence[Batch], resolved: Sequence[Batch]) -> tuple[Reduction, ...]:
    """What was taken from whom."""
    found = []
    for batch, place in _marked(asked):
        old, new = asked[batch].requests[place], resolved[batch].requests[place]
        if new.capacity != old.capacity:
            lengths = (old.capacity, new.capacity), (old.history_length, new.history_length)
            found.append(Reduction(batch, place, *lengths))
    return tuple(found)


def _capacities(constraints: Sequence[Batch], plan: Plan) -> tuple[int, ...]:
    """Tokens to which those were cut."""
    return tuple(plan.resolved_constraints[batch].requests[place].capacity for batch, place in _marked(constraints))


def _cut(constraints: Sequence[Batch], capacities: Sequence[int]) -> tuple[Batch, ...]:
    """The constraints with those requests at the capacities that were agreed on, fixed."""
    batches = [list(entry.requests) for entry in constraints]
    for (batch, place), capacity in zip(_marked(constraints), capacities, strict=True):
        asked = batches[batch][place]
        history = capacity - min(capacity, asked.capacity - asked.history_length)
        batches[batch][place] = Request(capacity, history, ConstraintPolicy.FIXED, asked.count)
    return tuple(
        Batch(requests, entry.system_prompt_length) for requests, entry in zip(batches, constraints, strict=True)
    )
