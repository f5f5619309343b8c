"""The table of a region's states. What a refusal says is in test_transitions.py."""

from __future__ import annotations

from vmmcache.memory.states import TRANSITIONS, Event, State

# Written out a second time on purpose: state by state, which events lead where, and all others nowhere.
EXPECTED = {
    ("reserved", "commit"): "committed",
    ("reserved", "release_physical"): "asleep",
    ("reserved", "close"): "closed",
    ("committed", "commit"): "committed",
    ("committed", "lease"): "committed",
    ("committed", "release_physical"): "asleep",
    ("committed", "close"): "closed",
    ("asleep", "release_physical"): "asleep",
    ("asleep", "restore"): "committed",
    ("asleep", "close"): "closed",
    ("closed", "close"): "closed",
}


def test_the_table_is_what_the_contract_says() -> None:
    table = {
        (state.value, event.value): after.value for state, row in TRANSITIONS.items() for event, after in row.items()
    }
    assert table == EXPECTED


def test_every_state_has_a_row_and_can_be_closed() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(row[Event.CLOSE] is State.CLOSED for row in TRANSITIONS.values())


def test_nothing_leads_out_of_closed() -> None:
    assert set(TRANSITIONS[State.CLOSED].values()) == {State.CLOSED}
