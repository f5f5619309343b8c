"""What a manager asks of the other ranks of its model-parallel group."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vmmcache.cache.ranks._combine import Kind, combined, text_of
from vmmcache.units import as_count

__all__ = ["OneProcess", "Ranks", "Settled"]


class Settled(NamedTuple):
    """How a step went on all ranks."""

    numbers: tuple[int, ...]
    """`merge_measurements` of the measurements of all ranks; empty where there are none, or one cannot go on."""
    refusals: Mapping[int, str]
    """Why ranks cannot go on, by rank, in their order."""


class Ranks(ABC):
    """Agreement over the ranks of a model-parallel group.

    Every rank calls the same methods with the same stages in the same order. A call returns the same on all ranks, or
    raises on all that are still there. An implementation gives `gather`; the rest is made of it, and may be done in a
    cheaper way.

    Every method that agrees may raise

    RankError
        A rank is gone, late, or cannot go on: ``rank``, ``stage``, and in ``state`` which. Later calls raise it again.
    StateError
        Ranks are at different stages: the order of calls is not the same everywhere. Later calls raise it again.
    ConfigError
        What they hand in does not go together.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of this rank in the group, from 0."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ranks the group has."""

    @abstractmethod
    def gather(self, stage: str, value: bytes) -> list[bytes]:
        """What every rank hands in, in the order of ranks.

        Parameters
        ----------
        stage : str
            What is agreed on; the same on all ranks, and named in errors.
        value : bytes
        """

    def minimum(self, stage: str, values: Sequence[int]) -> list[int]:
        """The smallest of each number over all ranks; every rank hands in as many."""
        numbers = [as_count("values", value, minimum=-(1 << 63), unit="anything") for value in values]
        return [int(value) for value in json.loads(self._combined("minimum", stage, text_of(numbers)))]

    def agree_reason(self, stage: str, reason: str | None) -> str | None:
        """The reason of the lowest rank that has one, as ``"rank 2: no driver"``; None where no rank has (S10, S5).

        A single process gets its own reason back as it is.
        """
        found = json.loads(self._combined("reason", stage, text_of(reason)))
        return None if found is None else str(found)

    def settle(self, stage: str, numbers: Sequence[int] = (), refusal: str | None = None) -> Settled:
        """How a step went on all ranks, and `merge_measurements` of what they measured.

        Parameters
        ----------
        stage : str
        numbers : sequence of int
            The measurement of this rank, where the step has one; then it has one on every rank.
        refusal : str, optional
            Why this rank cannot go on.

        Returns
        -------
        Settled
            The same on every rank, and as long for many of them as for few.
        """
        mine = [as_count("numbers", value, unit="anything") for value in numbers]
        agreed, refusals = json.loads(self._combined("step", stage, text_of([mine, refusal])))
        return Settled(tuple(agreed), {int(rank): str(why) for rank, why in refusals})

    @abstractmethod
    def abort(self, stage: str, error: BaseException | str) -> None:
        """Tell the others that this rank cannot go on, so that they do not wait for it. Never raises, never waits long.

        Parameters
        ----------
        stage : str
            Where it was.
        error : exception or str
            Why; the others see it in their RankError.
        """

    @abstractmethod
    def close(self) -> None:
        """Take no further part. The second time does nothing; a rank that goes on alone is told who has left."""

    def _combined(self, kind: Kind, stage: str, payload: bytes) -> bytes:
        """What `payload` of all ranks becomes."""
        return combined(kind, self.gather(stage, payload))


class OneProcess(Ranks):
    """A group of one: agreement is what it says itself. Nothing is imported, nothing can fail."""

    @property
    def rank(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

    def gather(self, stage: str, value: bytes) -> list[bytes]:
        return [bytes(value)]

    def abort(self, stage: str, error: BaseException | str) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is open."""
