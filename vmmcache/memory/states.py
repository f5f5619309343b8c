"""The states of a region, as one table.

Theory of operation
-------------------
A region is *addresses*, which it gets once and keeps, and *memory*, which comes and goes underneath. The states say how
much of the second there may be:

- RESERVED: addresses only. Nothing was committed yet.
- COMMITTED: some bytes (possibly none, after a shrink to nothing) are backed, accessible and visible.
- ASLEEP: the memory went back to the device; its shape is remembered, addresses and views stay.
- CLOSED: the addresses went back too. Nothing leads out of it but CLOSE, which then does nothing.

Two rules hold for everything in this package. An event that is not in the table raises StateError before any
driver call, and the state stays. An event that fails leaves the state as it was, with one exception: where memory
is being given *back* (a shrinking COMMIT, SLEEP, CLOSE) and the driver refuses to take it, the event counts as
happened, what could not be given back stays in the region's ledger, and the next event tries it first.

Leases are not in the table. They stand beside it and veto whatever would take away the bytes they cover.

``docs/invariants.md`` shows this table; a test holds the two equal. Whoever adds a state changes the table here and the
stateful machine in `vmmcache.testing.stateful`, which draws its rules from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from vmmcache.transitions import follow

__all__ = ["TRANSITIONS", "Event", "State", "next_state"]


class State(enum.Enum):
    """How much memory there may be behind the addresses."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    ASLEEP = "asleep"
    CLOSED = "closed"


class Event(enum.Enum):
    """What a caller asks for; the value is the method's name."""

    COMMIT = "commit"
    """Grow, shrink, or rebuild what is committed."""
    LEASE = "lease"
    """Promise a connector that bytes stay."""
    SLEEP = "release_physical"
    WAKE = "restore"
    CLOSE = "close"


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = MappingProxyType(
    {
        State.RESERVED: {
            Event.COMMIT: State.COMMITTED,
            Event.SLEEP: State.ASLEEP,
            Event.CLOSE: State.CLOSED,
        },
        State.COMMITTED: {
            Event.COMMIT: State.COMMITTED,
            Event.LEASE: State.COMMITTED,
            Event.SLEEP: State.ASLEEP,
            Event.CLOSE: State.CLOSED,
        },
        State.ASLEEP: {
            # Asking again finishes what a driver refused to take back the first time.
            Event.SLEEP: State.ASLEEP,
            Event.WAKE: State.COMMITTED,
            Event.CLOSE: State.CLOSED,
        },
        State.CLOSED: {
            Event.CLOSE: State.CLOSED,
        },
    }
)

_CURES: Final = {
    (State.RESERVED, Event.LEASE): "commit memory first",
    (State.RESERVED, Event.WAKE): "nothing was released; commit memory instead",
    (State.COMMITTED, Event.WAKE): "the memory is there already",
    (State.ASLEEP, Event.COMMIT): "restore() first",
    (State.ASLEEP, Event.LEASE): "restore() first",
}


def next_state(state: State, event: Event, *, who: object) -> State:
    """The state after `event`, or StateError that names `who`, state, event and what helps."""
    return follow(TRANSITIONS, state, event, who=who, cures=_CURES, otherwise="make a new one")
