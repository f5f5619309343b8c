"""Why there is no agreement, and the error that a rank makes of it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from vmmcache.cache.ranks._combine import text_of
from vmmcache.errors import RankError, StateError

__all__ = ["NOBODY", "State", "Verdict", "again", "error_of"]

State = Literal["closed", "dead", "failed", "here", "late", "order", "unreachable"]
"""What is the matter with a rank; nothing where it is "here"."""

NOBODY: Final = -1
"""The rank of an error where none of the group is to blame: the store is hosted by a process outside of it."""


class Verdict(NamedTuple):
    """Why there is no agreement."""

    rank: int
    """Whose fault it is."""
    state: State
    why: str
    """A sentence without its subject: ``has not come within 60 s``."""
    here: str = ""
    """Where ranks are at different stages: the one at which most are."""
    there: str = ""
    """And the one at which `rank` is."""

    def encoded(self) -> bytes:
        return b"!" + text_of(list(self))


def error_of(verdict: Verdict, rank: int, stage: str) -> StateError:
    """What `rank` raises that was at `stage`: a RankError, or a StateError where ranks are out of order."""
    if verdict.state == "order":
        return StateError(
            f"rank {verdict.rank} {verdict.why}: call the same methods in the same order on every rank",
            state=verdict.here,
            event=verdict.there,
        )
    who = "a process outside the group" if verdict.rank == NOBODY else f"rank {verdict.rank}"
    whose = f"{who} (this one)" if verdict.rank == rank else who
    text = f"{whose} {verdict.why}; this rank was agreeing on {stage!r}"
    return RankError(text, rank=verdict.rank, stage=stage, state=verdict.state)


def again(error: StateError, stage: str) -> StateError:
    """What every later call raises, at its own `stage`: the same, and why."""
    text = f"no agreement on {stage!r}, because an earlier one failed: {error}"
    if isinstance(error, RankError):
        return RankError(text, rank=error.rank, stage=error.stage, state=error.state)
    return StateError(text, state=error.state, event=error.event)
