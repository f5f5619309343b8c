"""Going ahead together: each rank says what came of a step, and either all go on or none does (I14)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from vmmcache.cache.ranks import Ranks
from vmmcache.errors import DriverError, OutOfDeviceMemory, RankError, VmmCacheError

__all__ = ["Answer", "all_or_none", "answers_of"]

_STATE: Final = "refused"


class Answer(NamedTuple):
    """What one rank said of a step."""

    numbers: tuple[int, ...] = ()
    refusal: str | None = None
    """Why it cannot go on."""
    kind: str = ""
    """``"memory"``: there is not enough, and less may do; ``"driver"``: the device refused otherwise; or neither. Or
    what the step is about, where `answers_of` was told."""


def answers_of(
    ranks: Ranks, stage: str, error: VmmCacheError | None, numbers: Sequence[int] = (), *, kind: str | None = None
) -> list[Answer]:
    """Tell the other ranks how a step went here, and hear how it went there. One exchange; none for a single rank.

    Parameters
    ----------
    stage : str
        Which step; named in errors.
    error : VmmCacheError or None
        What went wrong here.
    numbers : sequence of int
        What came of it here.
    kind : str, optional
        `Answer.kind` of what went wrong here; by default what kind of error it is.

    Raises
    ------
    RankError
        A rank is gone. Where something went wrong here, that is raised instead, with a note.
    """
    mine = Answer(tuple(numbers))
    if error is not None:
        mine = Answer((), f"{type(error).__name__}: {error}", _kind(error) if kind is None else kind)
    if ranks.size == 1:
        return [mine]
    try:
        settled = ranks.settle(stage, numbers, None if error is None else json.dumps([mine.refusal, mine.kind]))
    except RankError as lost:
        # What went wrong here is the more useful of the two.
        if error is None:
            raise
        error.add_note(f"the other ranks could not be told: {lost}")
        raise error from None
    # Numbers are merged on the way, and merging them once more changes nothing: no rank has to read those of all.
    answers = [Answer(settled.numbers)] * ranks.size
    for rank, refusal in settled.refusals.items():
        answers[rank] = Answer((), *json.loads(refusal))
    return answers


def all_or_none(answers: Sequence[Answer], stage: str, error: VmmCacheError | None) -> None:
    """Go on where all ranks can.

    Raises
    ------
    VmmCacheError
        `error`, where something went wrong here.
    RankError
        It went wrong on another rank, whose number and message are given.
    """
    if error is not None:
        raise error
    for rank, answer in enumerate(answers):
        if answer.refusal is not None:
            raise RankError(
                f"rank {rank} could not do its part of {stage!r}, so no rank did: {answer.refusal}",
                rank=rank,
                stage=stage,
                state=_STATE,
                event=stage,
            )


def _kind(error: VmmCacheError) -> str:
    return "memory" if isinstance(error, OutOfDeviceMemory) else "driver" if isinstance(error, DriverError) else ""
