"""What holds for both tables of states, a region's and a manager's: every pair of state and event."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from vmmcache.cache import states as of_a_manager
from vmmcache.errors import StateError
from vmmcache.memory import states as of_a_region

MODULES: tuple[Any, ...] = (of_a_region, of_a_manager)
PAIRS = [(module, state, event) for module in MODULES for state, event in itertools.product(module.State, module.Event)]
ALLOWED = [(module, state, event) for module, state, event in PAIRS if event in module.TRANSITIONS[state]]
REFUSED = [(module, state, event) for module, state, event in PAIRS if event not in module.TRANSITIONS[state]]


@pytest.mark.parametrize(("module", "state", "event"), ALLOWED)
def test_an_event_of_the_table_leads_to_its_state(module: Any, state: Any, event: Any) -> None:
    assert module.next_state(state, event, who="it") is module.TRANSITIONS[state][event]


@pytest.mark.parametrize(("module", "state", "event"), REFUSED)
def test_any_other_event_is_refused_with_who_state_event_and_cure(module: Any, state: Any, event: Any) -> None:
    with pytest.raises(StateError) as caught:
        module.next_state(state, event, who="the cache")
    assert (caught.value.state, caught.value.event) == (state.value, event.value)
    message = str(caught.value)
    assert message.startswith(f"the cache is {state.value}, which does not allow {event.value}(); ")
    assert message.rpartition("; ")[2]


@pytest.mark.parametrize(
    ("module", "state", "event", "cure"),
    [
        (of_a_region, "asleep", "commit", "restore() first"),
        (of_a_region, "closed", "commit", "make a new one"),
        (of_a_manager, "asleep", "views", "wake() first; views that you have are valid again then"),
        (of_a_manager, "asleep", "finalize", "its size is decided already; see resize()"),
        (of_a_manager, "closed", "finalize", "make a new one"),
    ],
)
def test_the_cure_is_that_of_the_pair_or_the_one_for_all_others(module: Any, state: str, event: str, cure: str) -> None:
    with pytest.raises(StateError) as caught:
        module.next_state(module.State(state), module.Event(event), who="it")
    assert str(caught.value) == f"it is {state}, which does not allow {event}(); {cure}"


def test_who_is_made_into_text_only_where_it_is_needed() -> None:
    class Nameless:
        def __str__(self) -> str:
            raise AssertionError

    for module, state, event in ALLOWED:
        module.next_state(state, event, who=Nameless())


@pytest.mark.parametrize("module", MODULES)
def test_the_table_cannot_be_changed_by_accident(module: Any) -> None:
    with pytest.raises(TypeError):
        module.TRANSITIONS[module.State.CLOSED] = {}
