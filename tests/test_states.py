"""The table of states: every pair of state and event, and what a refusal says."""

from __future__ import annotations

import itertools

import pytest

from vmmcache.errors import StateError
from vmmcache.memory.states import TRANSITIONS, Event, State, next_state

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
PAIRS = list(itertools.product(State, Event))
ALLOWED = [pair for pair in PAIRS if pair[1] in TRANSITIONS[pair[0]]]
REFUSED = [pair for pair in PAIRS if pair[1] not in TRANSITIONS[pair[0]]]


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


@pytest.mark.parametrize(("state", "event"), ALLOWED)
def test_an_event_of_the_table_leads_to_its_state(state: State, event: Event) -> None:
    assert next_state(state, event, who="it") is TRANSITIONS[state][event]


@pytest.mark.parametrize(("state", "event"), REFUSED)
def test_any_other_event_is_refused_with_who_state_event_and_cure(state: State, event: Event) -> None:
    with pytest.raises(StateError) as caught:
        next_state(state, event, who="the cache")
    assert (caught.value.state, caught.value.event) == (state.value, event.value)
    message = str(caught.value)
    assert message.startswith(f"the cache is {state.value}, which does not allow {event.value}(); ")
    assert message.rpartition("; ")[2]


def test_the_table_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.CLOSED] = {}  # type: ignore[index]  # that is the point
