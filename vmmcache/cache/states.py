"""The life of a manager, as one table.

Theory of operation
-------------------
A manager lives through two times, and what may be done differs:

- WARMING: addresses are there, and a little memory. The engine runs what it will run later, takes views and captures
  graphs; the manager watches how much memory that takes.
- READY: how much memory the cache gets is decided, and it is there. Requests are served.
- ASLEEP: the memory went back to the device, addresses and views stay. Nothing may be touched.
- CLOSED: all of it went back. Nothing leads out of it but CLOSE, which then does nothing.

An event that is not in the table raises StateError before anything is done. An event that fails leaves the state as it
was, with the one exception of `vmmcache.memory.states`: memory that the driver refuses to take *back* counts as given
back, and asking again finishes it.

``docs/manager.md`` shows this table; a test holds the two equal.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from vmmcache.transitions import follow

__all__ = ["TRANSITIONS", "Event", "State", "next_state"]


class State(enum.Enum):
    """Which time of its life a manager is in."""

    WARMING = "warming"
    READY = "ready"
    ASLEEP = "asleep"
    CLOSED = "closed"


class Event(enum.Enum):
    """What an engine asks for; the value is the method's name."""

    VIEWS = "views"
    COMMITTABLE = "committable"
    BOUND = "ensure_bound"
    ENSURE = "ensure"
    PROFILE = "profile"
    WARM_UP = "warm_up"
    MEASURE = "measure"
    APPLY = "apply"
    """Commit what was measured; the last step of `finalize`, or a call of the engine's that carries the numbers."""
    FINALIZE = "finalize"
    RESIZE = "resize"
    SLEEP = "sleep"
    WAKE = "wake"
    CLOSE = "close"


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = MappingProxyType(
    {
        State.WARMING: {
            **dict.fromkeys(
                (
                    Event.VIEWS,
                    Event.COMMITTABLE,
                    Event.BOUND,
                    Event.ENSURE,
                    Event.PROFILE,
                    Event.WARM_UP,
                    Event.MEASURE,
                ),
                State.WARMING,
            ),
            Event.APPLY: State.READY,
            Event.FINALIZE: State.READY,
            Event.CLOSE: State.CLOSED,
        },
        State.READY: {
            Event.VIEWS: State.READY,
            Event.RESIZE: State.READY,
            Event.SLEEP: State.ASLEEP,
            Event.CLOSE: State.CLOSED,
        },
        State.ASLEEP: {
            # Asking again finishes what a driver refused to take back the first time.
            Event.SLEEP: State.ASLEEP,
            Event.WAKE: State.READY,
            Event.CLOSE: State.CLOSED,
        },
        State.CLOSED: {
            Event.CLOSE: State.CLOSED,
        },
    }
)

_CURES: Final = {
    (State.WARMING, Event.SLEEP): "finalize() first, or close()",
    (State.WARMING, Event.WAKE): "it was never asleep",
    (State.WARMING, Event.RESIZE): "finalize() decides its size; resize() may change it then",
    (State.READY, Event.WAKE): "its memory is there already",
    (State.ASLEEP, Event.VIEWS): "wake() first; views that you have are valid again then",
    (State.ASLEEP, Event.RESIZE): "wake() first",
}


def next_state(state: State, event: Event, *, who: object) -> State:
    """The state after `event`, or StateError that names `who`, state, event and what helps."""
    otherwise = "make a new one" if state is State.CLOSED else "its size is decided already; see resize()"
    return follow(TRANSITIONS, state, event, who=who, cures=_CURES, otherwise=otherwise)
