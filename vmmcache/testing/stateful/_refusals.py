"""Rules: what has to be refused without touching anything."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import rule

from vmmcache.errors import ConfigError, StateError
from vmmcache.memory.states import TRANSITIONS, Event, State
from vmmcache.testing.stateful._machine import SEGMENT, Machine
from vmmcache.testing.strategies import FaultPlan


class Refusals(Machine):
    """Orders that the table of states does not have, and sizes that no segment has."""

    @rule(event=st.sampled_from([Event.COMMIT, Event.LEASE, Event.SLEEP, Event.WAKE]))
    def do_what_is_not_allowed(self, event: Event) -> None:
        """StateError, and not a call of the driver."""
        assume(event not in TRANSITIONS[State(self.model.state)])
        calls = {
            Event.COMMIT: lambda: self.tensor.commit(self.model.sizes),
            Event.LEASE: lambda: self.tensor.lease(0, "nobody"),
            Event.SLEEP: self.tensor.release_physical,
            Event.WAKE: self.tensor.restore,
        }
        error = self.attempt(calls[event], FaultPlan())
        assert isinstance(error, StateError)
        assert (error.state, error.event) == (self.model.state, event.value)
        assert not self.driver.journal

    @rule(index=SEGMENT, wrong=st.sampled_from(["too many", "negative", "fraction", "too few sizes"]))
    def ask_for_what_there_is_not(self, index: int, wrong: str) -> None:
        """ConfigError, and not a call of the driver."""
        sizes: list[Any] = list(self.model.sizes)
        if wrong == "too few sizes":
            del sizes[index]
        else:
            sizes[index] = {"too many": sizes[index] + 1, "negative": -1, "fraction": 0.5}[wrong]
        error = self.attempt(lambda: self.tensor.commit(sizes, defragment=True), FaultPlan())
        assert isinstance(error, ConfigError)
        assert not self.driver.journal
