"""What the pools of a plan can serve: how many requests of a length, how long a single one, what gives out first."""

from __future__ import annotations

from typing import NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning.demand import Demand
from vmmcache.planning.limits import MAX_SIZE, as_size
from vmmcache.planning.longest import longest_in
from vmmcache.planning.result import Plan

__all__ = ["Capacity", "capacity_of"]


class Capacity(NamedTuple):
    """What a plan's pools can serve."""

    length: int
    """Tokens of the requests that are counted."""
    requests: int
    """How many of them decode together, and can all be suspended and resumed."""
    longest: int
    """Tokens of the longest request that has the cache for itself, within the limit given."""
    longest_in_memory: int
    """Tokens of the longest request that the pools hold; 2^63 - 1 where nothing grows with its length."""
    exhausted: int
    """The pool group that gives out first when one more is added."""
    bytes_per_token: int
    """Bytes by which the cache of a long request grows with each token; windows and states no longer grow."""


def capacity_of(plan: Plan, length: int, upper: int = MAX_SIZE) -> Capacity:
    """What the pools of `plan` serve, for requests of `length` tokens that decode.

    Parameters
    ----------
    plan : Plan
    length : int
        Tokens of a request, the one it is about to write included; at least 1.
    upper : int, optional
        Tokens beyond which no single request can go, for example the model's own limit.

    Raises
    ------
    ConfigError
        `length` or `upper` is wrong.
    """
    length = as_size("length", length, minimum=1, unit="tokens")
    upper = as_size("upper", upper, unit="tokens")
    demand = Demand(plan.layout, plan.scratch_rewind)
    needs = demand.by_group(demand.private([(length, length - 1, 1)], 0))
    share = plan.resume_share
    admitted = []
    for group, need in enumerate(needs):
        slots = plan.groups[group].slots - plan.reserved_slots
        if not plan.layout.groups[group].constant:
            slots = slots * share.numerator // share.denominator
        admitted.append(slots // need if need else MAX_SIZE)
    requests = min(admitted)
    if requests == MAX_SIZE:
        raise ConfigError("length", length, "takes no slot of any pool group")
    t = plan.layout.tokens_per_block
    growing = sum(
        sum(cycle.slot_bytes) for cycle in plan.layout.life_cycles if cycle.kind == "attention" and cycle.window is None
    )
    longest = longest_in(plan)
    return Capacity(length, requests, min(longest, upper), longest, admitted.index(requests), -(-growing // t))
