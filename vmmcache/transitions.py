"""Tables of states: where an event leads, and what is said where it leads nowhere."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from vmmcache.errors import StateError

__all__ = ["follow"]

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


def follow(
    table: Mapping[S, Mapping[E, S]],
    state: S,
    event: E,
    *,
    who: object,
    cures: Mapping[tuple[S, E], str],
    otherwise: str,
) -> S:
    """The state after `event`, or StateError that names `who`, state, event and what helps.

    `who` is made into text only where it is needed. `otherwise` helps where `cures` knows nothing better.
    """
    try:
        return table[state][event]
    except KeyError:
        raise StateError(
            f"{who} is {state.value}, which does not allow {event.value}(); {cures.get((state, event), otherwise)}",
            state=state.value,
            event=event.value,
        ) from None
