"""What ranks write for one another, and what is made of it.

An agreement has a number, and under that number three kinds of keys in a store that all ranks share::

    7/rank/2    what rank 2 hands in: its stage, and its payload; or that it has failed, or closed
    7/come      how many have come
    7/outcome   what came of it: written once, by whoever comes first to write it

Who comes last makes the outcome; where somebody does not come, whoever has waited long enough does. Since it is written
once, all ranks read the same, and a rank that comes when the others have given up reads that too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from vmmcache.cache.ranks._combine import Kind, combined, text_of
from vmmcache.cache.ranks._verdicts import State, Verdict
from vmmcache.errors import ConfigError

__all__ = ["Arrival", "Keys", "Outcome", "decided"]

# The worst first: what somebody says of himself, then what is known, then what is only guessed.
_GRAVITY: Final[Sequence[State]] = ("failed", "dead", "closed", "order", "late")


class Keys(NamedTuple):
    """The keys of one agreement."""

    number: int

    @property
    def come(self) -> str:
        """How many have come."""
        return f"{self.number}/come"

    @property
    def outcome(self) -> str:
        """What came of it."""
        return f"{self.number}/outcome"

    @property
    def judges(self) -> str:
        """How many have taken on to say who is missing."""
        return f"{self.number}/judges"

    def of(self, rank: int) -> str:
        """What one rank hands in."""
        return f"{self.number}/rank/{rank}"

    def all(self, size: int) -> list[str]:
        """What every rank hands in."""
        return [self.of(rank) for rank in range(size)]


class Arrival(NamedTuple):
    """What one rank hands in."""

    stage: str
    kind: Kind = "gather"
    payload: bytes = b""
    state: State = "here"
    why: str = ""

    def encoded(self) -> bytes:
        return text_of([self.stage, self.kind, self.state, self.why]) + b"\n" + self.payload

    @staticmethod
    def decoded(data: bytes) -> Arrival:
        """What `encoded` wrote."""
        head, _, payload = data.partition(b"\n")
        stage, kind, state, why = json.loads(head)
        return Arrival(stage, kind, payload, state, why)


class Outcome(NamedTuple):
    """What came of an agreement: an answer, or a verdict, or neither, and then everyone finds out for himself why."""

    answer: bytes | None = None
    verdict: Verdict | None = None

    @staticmethod
    def decoded(data: bytes) -> Outcome:
        """What `decided` wrote."""
        if data.startswith(b"="):
            return Outcome(answer=data[1:])
        return Outcome(verdict=Verdict(*json.loads(data[1:]))) if data.startswith(b"!") else Outcome()


def decided(arrivals: Sequence[Arrival | None], missing: Mapping[int, tuple[State, str]]) -> bytes:
    """The outcome of an agreement, as it is written.

    Parameters
    ----------
    arrivals : sequence of Arrival or None
        What each rank has handed in; None for one that has not come.
    missing : mapping
        For every rank that has not come, whether it is dead or late, and in words.
    """
    verdicts = [
        Verdict(rank, arrival.state, arrival.why)
        for rank, arrival in enumerate(arrivals)
        if arrival is not None and arrival.state != "here"
    ]
    verdicts += [Verdict(rank, *missing[rank]) for rank, arrival in enumerate(arrivals) if arrival is None]
    verdicts += _out_of_order(arrivals)
    if verdicts:
        return min(verdicts, key=lambda verdict: (_GRAVITY.index(verdict.state), verdict.rank)).encoded()
    present = [arrival for arrival in arrivals if arrival is not None]
    try:
        return b"=" + combined(present[0].kind, [arrival.payload for arrival in present])
    except ConfigError:
        # It does not go together. The error is a function of what was handed in: everyone raises his own.
        return b"?"


def _out_of_order(arrivals: Sequence[Arrival | None]) -> list[Verdict]:
    """Ranks that are at another stage than most."""
    here = {rank: _what(arrival) for rank, arrival in enumerate(arrivals) if arrival and arrival.state == "here"}
    if len(set(here.values())) < 2:
        return []
    most = Counter(here.values()).most_common(1)[0][0]
    first = min(rank for rank, what in here.items() if what == most)
    return [
        Verdict(rank, "order", f"is at {what}, but rank {first} at {most}", most, what)
        for rank, what in here.items()
        if what != most
    ]


def _what(arrival: Arrival) -> str:
    return f"{arrival.kind} {arrival.stage!r}"
