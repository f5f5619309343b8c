"""What the cache is to hold at once: requests of a step, batches of requests, and which of them may shrink."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning.layers import items_of
from vmmcache.planning.limits import MAX_SLOTS, as_size

__all__ = ["Batch", "ConstraintPolicy", "Request", "lower_bound"]


class ConstraintPolicy(StrEnum):
    """What may happen to a request of a constraint when the quota is too small for it."""

    FIXED = "FIXED"
    """Nothing: it fits as it is, or the plan is refused."""
    FIT_TO_QUOTA = "FIT_TO_QUOTA"
    """Capacity and history shrink together until the whole workload fits."""


class _RequestFields(NamedTuple):
    capacity: int
    history_length: int
    policy: ConstraintPolicy
    count: int  # type: ignore[assignment]  # hides tuple.count, which means nothing here


class Request(_RequestFields):
    """One request in one step.

    Parameters
    ----------
    capacity : int
        Tokens for which pages exist.
    history_length : int, default 0
        Tokens whose keys and values are computed already; capacity - history_length is what the step writes.
    policy : ConstraintPolicy, default FIXED
        Whether the planner may shrink it. Its name as text is taken too.
    count : int, default 1
        How many equal copies of it the batch has.

    Raises
    ------
    ConfigError
        A number is negative or not whole, or the history is longer than the capacity.
    """

    __slots__ = ()

    def __new__(
        cls,
        capacity: int,
        history_length: int = 0,
        policy: ConstraintPolicy = ConstraintPolicy.FIXED,
        count: int = 1,
    ) -> Request:
        """Check, and freeze."""
        capacity = as_size("capacity", capacity, unit="tokens")
        history_length = as_size("history_length", history_length, unit="tokens")
        if history_length > capacity:
            raise ConfigError("history_length", history_length, f"is above the capacity of {capacity} tokens")
        if type(policy) is not ConstraintPolicy:
            policy = _policy(policy)
        count = as_size("count", count, minimum=1, maximum=MAX_SLOTS, unit="requests")
        return super().__new__(cls, capacity, history_length, policy, count)


class _BatchFields(NamedTuple):
    requests: tuple[Request, ...]
    system_prompt_length: int


class Batch(_BatchFields):
    """The requests of one step.

    Parameters
    ----------
    requests : iterable of Request
        May be empty; the order does not matter.
    system_prompt_length : int, default 0
        First tokens that all of them share; only whole blocks are shared.

    Raises
    ------
    ConfigError
        An entry is no Request, or the length is negative or not whole.
    """

    __slots__ = ()

    def __new__(cls, requests: Iterable[Request] = (), system_prompt_length: int = 0) -> Batch:
        """Check, and freeze."""
        system_prompt_length = as_size("system_prompt_length", system_prompt_length, unit="tokens")
        return super().__new__(cls, items_of("requests", requests, Request, "Request"), system_prompt_length)


def lower_bound(request: Request, system_prompt_length: int) -> int:
    """Smallest capacity, in tokens, to which a FIT_TO_QUOTA request of such a batch may shrink.

    What the step writes is kept, one token at least, and the prompt that the batch shares; a request that asked for
    less than that keeps what it asked for.
    """
    headroom = request.capacity - request.history_length
    return min(request.capacity, max(1, headroom, system_prompt_length))


def _policy(value: object) -> ConstraintPolicy:
    for policy in ConstraintPolicy:
        if value == policy.value:
            return policy
    raise ConfigError("policy", value, "must be one of " + ", ".join(ConstraintPolicy))
