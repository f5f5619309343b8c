"""The table of a manager's states: every pair of state and event, what a refusal says, and that the page shows it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from vmmcache.cache.states import TRANSITIONS, Event, State, next_state
from vmmcache.errors import StateError

# Written out a second time on purpose: state by state, which events lead where, and all others nowhere.
EXPECTED = {
    "warming": {
        **dict.fromkeys(("views", "committable", "ensure_bound", "ensure", "profile", "warm_up", "measure"), "warming"),
        "apply": "ready",
        "finalize": "ready",
        "close": "closed",
    },
    "ready": {"views": "ready", "resize": "ready", "sleep": "asleep", "close": "closed"},
    "asleep": {"sleep": "asleep", "wake": "ready", "close": "closed"},
    "closed": {"close": "closed"},
}
NEVER = "\N{EN DASH}"
PAIRS = list(itertools.product(State, Event))
ALLOWED = [pair for pair in PAIRS if pair[1] in TRANSITIONS[pair[0]]]
REFUSED = [pair for pair in PAIRS if pair[1] not in TRANSITIONS[pair[0]]]


def test_the_table_is_what_the_contract_says() -> None:
    table = {
        state.value: {event.value: after.value for event, after in row.items()} for state, row in TRANSITIONS.items()
    }
    assert table == EXPECTED


@pytest.mark.parametrize(("state", "event"), ALLOWED)
def test_an_event_of_the_table_leads_to_its_state(state: State, event: Event) -> None:
    assert next_state(state, event, who="it") is TRANSITIONS[state][event]


@pytest.mark.parametrize(("state", "event"), REFUSED)
def test_any_other_event_is_refused_with_who_state_event_and_cure(state: State, event: Event) -> None:
    with pytest.raises(StateError) as caught:
        next_state(state, event, who="the manager")
    assert (caught.value.state, caught.value.event) == (state.value, event.value)
    message = str(caught.value)
    assert message.startswith(f"the manager is {state.value}, which does not allow {event.value}(); ")
    assert message.rpartition("; ")[2]


def test_the_table_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.CLOSED] = {}  # type: ignore[index]  # that is the point


def test_the_page_shows_the_table(repository: Path) -> None:
    page = (repository / "docs" / "manager.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    head = next(line for line in lines if "`finalize`" in line)
    events = [cell.strip().strip("`") for cell in head.split("|")[2:-1]]
    assert sorted(events) == sorted(event.value for event in Event)
    for state, row in EXPECTED.items():
        shown = next(line for line in lines if line.startswith(f"| **{state}** "))
        cells = [cell.strip() for cell in shown.split("|")[2:-1]]
        assert dict(zip(events, cells, strict=True)) == {event: row.get(event, NEVER) for event in events}
