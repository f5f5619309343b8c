"""What one agreement of ranks takes: the requests that `StoreRanks` makes, each with its answer.

In the lengths of TCPStore's own encoding (torch's ``TCPStore.cpp``). `_rank_wire` counts the same on a real store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vmmcache.cache.ranks import GroupNumbers, Measurement
from vmmcache.cache.ranks._combine import Kind, text_of
from vmmcache.cache.ranks._protocol import Arrival, Keys, decided

__all__ = ["GATHERED", "LIFE", "PREFIX", "Agreement", "Cost", "cost", "life"]

PREFIX: Final = f"vmmcache/ranks/{'0' * 16}/0"


class Cost(NamedTuple):
    """Messages, and bytes of all of them."""

    messages: int
    nbytes: int

    def plus(self, other: Cost) -> Cost:
        """Both, one after the other."""
        return Cost(self.messages + other.messages, self.nbytes + other.nbytes)


class Agreement(NamedTuple):
    """One of those that a manager's life makes."""

    stage: str
    kind: Kind
    payload: Callable[[int], bytes]


# What a manager says --------------------------------------------------------------------------------------------------


def fine(rank: int) -> bytes:
    """A step that went well."""
    return text_of([[], None])


def told(rank: int) -> bytes:
    """A measurement of three pool groups; no two ranks have measured the same."""
    cycles = (("attention", None, 0), ("attention", 512, 1), ("ssm", None, 0))
    groups = (GroupNumbers((cycle,), 100_000 + rank, 200_000, 32) for cycle in cycles)
    return text_of([Measurement("measured", tuple(groups), (1 << 20,)).to_ints(), None])


LIFE: Final = (
    Agreement("probe", "reason", lambda rank: b"null"),
    Agreement("reserve", "step", fine),
    Agreement("first commit", "step", told),
    Agreement("finalize: measure", "step", told),
    Agreement("finalize: commit", "step", fine),
    Agreement("resize: plan", "step", told),
    Agreement("resize: commit", "step", fine),
    Agreement("sleep", "step", fine),
    Agreement("wake", "step", fine),
)
GATHERED: Final = Agreement("the same numbers, if every rank read those of all", "gather", told)


# Counted by the code --------------------------------------------------------------------------------------------------


def cost(agreement: Agreement, number: int, size: int) -> Cost:
    """Every message of one agreement and its bytes, both ways; `number` is which it is, from 0 for joining."""
    keys, old = Keys(number), Keys(number - 2)
    arrivals = [Arrival(agreement.stage, agreement.kind, agreement.payload(rank)) for rank in range(size)]
    outcome = len(decided(arrivals, {}))
    names = [_text(key) for key in keys.all(size)]
    messages = nbytes = 0

    def request(sent: int, *answers: int) -> None:
        nonlocal messages, nbytes
        messages += 1 + len(answers)
        nbytes += 1 + sent + sum(answers)

    for rank in range(size):
        if number > 1:
            for key in (old.of(rank), *((old.come, old.outcome, old.judges) if rank == 0 else ())):
                request(_text(key), 8)  # delete
        request(names[rank] + 8 + len(arrivals[rank].encoded()))  # set
        request(_text(keys.come) + 8, 8)  # add
    awaited = _text(keys.outcome)
    for _ in range(size - 1):
        request(8 + awaited, 1)  # wait
        request(8 + awaited, 1)  # get: a wait
        request(awaited, 8 + outcome)  # and the reading
    request(8 + sum(names), 1)  # multi_get: a wait
    request(8 + sum(names), sum(8 + len(arrival.encoded()) for arrival in arrivals))
    request(awaited + 8 + 8 + outcome, 8 + outcome)  # compare_set
    return Cost(messages, nbytes)


def _text(key: str) -> int:
    return 8 + len(f"/{PREFIX}/{key}")


def life(size: int) -> Cost:
    """A manager's whole life among `size` ranks."""
    total = Cost(0, 0)
    for number, agreement in enumerate(LIFE, 1):
        total = total.plus(cost(agreement, number, size))
    return total
