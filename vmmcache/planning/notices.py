"""What a plan says besides its numbers: warnings, and records of what was reduced and what binds."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Binding", "PlanWarning", "Reduction"]


class PlanWarning(UserWarning):
    """The plan holds, but is not quite what was asked for."""


class Reduction(NamedTuple):
    """A FIT_TO_QUOTA request that had to shrink; all its copies did."""

    batch: int
    """Place of its batch in the constraints."""
    request: int
    """Place of its entry in the batch."""
    capacity: tuple[int, int]
    """Tokens asked for, tokens planned."""
    history_length: tuple[int, int]


class Binding(NamedTuple):
    """Why a larger workload does not fit."""

    group: int
    """The pool group that takes most of the bytes that are missing."""
    constraint: int | None
    """The constraint that asks for them; None for the layout's own floor."""
    short: int
    """Bytes by which the workload as asked for exceeds the usable quota."""
