"""When ranks have come apart after all: what one has done, and another could not, is undone, and all hear how (I14).

A step is agreed on before it is taken, so this is for what nobody could foresee: a driver that refuses in the middle, a
lease that was taken meanwhile, memory that somebody else has by the time it is to be had again. Every rank raises then,
and its error says which ranks are left in which state, and what brings them together.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Final

from vmmcache.cache.agreement import answers_of
from vmmcache.cache.core import Core
from vmmcache.cache.noting import NOTE, Exit, noting
from vmmcache.cache.ranks import Measurement, measurement_of, merge_measurements
from vmmcache.cache.waking import wake_alone
from vmmcache.errors import RankError, VmmCacheError

__all__ = ["rejoining", "sleep_together"]

_RELEASE: Final = "sleep: release"
_ASLEEP: Final = "asleep"
_AGAIN: Final = "call sleep() again on every rank"


def sleep_together(core: Core, error: VmmCacheError | None) -> None:
    """Hear whether all ranks sleep. Where one could not, those that do wake again.

    Parameters
    ----------
    error : VmmCacheError or None
        What went wrong here. The rank may be asleep all the same, but for memory that its driver did not take back.

    Raises
    ------
    VmmCacheError
        `error`, with a note of what the other ranks are.
    RankError
        It went wrong on another rank, or one is gone.
    """
    mine = _ASLEEP if core.asleep_counts else "awake"
    answers = answers_of(core.ranks, _RELEASE, error, kind=mine)
    refused = {rank: answer for rank, answer in enumerate(answers) if answer.refusal is not None}
    if not refused:
        return
    awake = [rank for rank, answer in refused.items() if answer.kind != _ASLEEP]
    rank = awake[0] if awake else next(iter(refused))
    if core.ranks.size == 1:
        state = None
    elif awake:
        state = _wake_again(core)
    else:
        state = f"all ranks are asleep; {_AGAIN} to give back the rest"
    if error is None:
        raise RankError(
            f"rank {rank} could not give its memory back: {refused[rank].refusal}; {state}",
            rank=rank,
            stage=_RELEASE,
            state=mine,
            event="sleep",
        )
    if state is not None:
        error.add_note(state)
    raise error


def _wake_again(core: Core) -> str:
    """Have the memory again that another rank could not give back; say what has become of all ranks."""
    problem: str | None = None
    try:
        if core.asleep_counts:
            wake_alone(core)
    except VmmCacheError as refusal:
        problem = f"{type(refusal).__name__}: {refusal}"
    try:
        said = core.ranks.gather("sleep: wake again", json.dumps(problem).encode())
    except VmmCacheError as lost:
        return f"this rank is {'awake again' if problem is None else f'asleep ({problem})'}, and the others: {lost}"
    asleep = {rank: why for rank, why in enumerate(map(json.loads, said)) if why is not None}
    if not asleep:
        return "all ranks are awake again, without what suspended requests held and nobody had backed up"
    those = "; ".join(f"rank {rank} could not wake again and is asleep ({why})" for rank, why in asleep.items())
    return f"{those}; the other ranks are awake; {_AGAIN}"


def rejoining(core: Core, stage: str) -> Exit:
    """An undo step, to be pushed before all others of a step that every rank takes: hand out the same slots again.

    Where memory could not be had again, or not be given back, a rank has other slots than before the step. All ranks
    then hand out what each of them has, and every error says so. For a step that is left by an error of ours on all
    ranks or on none.
    """

    def undo(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        counts = core.path.backing.slots
        if isinstance(error, VmmCacheError) and core.ranks.size > 1:
            counts = _alike(core, stage, error)
        noting(lambda: core.slots.set_counts(counts))(kind, error, trace)

    return undo


def _alike(core: Core, stage: str, error: VmmCacheError) -> tuple[int, ...]:
    """Slots of each group that all ranks have; those of this one where the others cannot be asked."""
    path = core.path
    here = path.backing.slots
    own = measurement_of(core.settings.layout, path.mode, here, path.most())
    problems = [note.removeprefix(NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(NOTE)]
    try:
        texts = core.ranks.gather(f"{stage}: undo", json.dumps([own.to_ints(), problems]).encode())
        said = [json.loads(text) for text in texts]
        agreed = Measurement.from_ints(merge_measurements([numbers for numbers, _ in said]))
        counts = tuple(group.slots for group in agreed.seen_by(own).groups)
    except VmmCacheError as refusal:
        error.add_note(f"whether the other ranks have the same slots is not known: {refusal}")
        return here
    for rank, (_, refusals) in enumerate(said):
        if refusals and rank != core.ranks.rank:
            error.add_note(f"undoing failed on rank {rank}: {'; '.join(refusals)}")
    if counts != here:
        error.add_note(f"of {list(here)} slots all ranks hand out {list(counts)}, until {stage}() succeeds")
    return counts
