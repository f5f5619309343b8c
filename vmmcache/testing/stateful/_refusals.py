"""Rules: what has to be refused without touching anything."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from vmmcache.errors import ConfigError, StateError
from vmmcache.memory.states import TRANSITIONS, Event, State
from vmmcache.testing.stateful._machine import SEGMENT, Machine
from vmmcache.testing.strategies import FaultPlan


class Refusals(Machine):
    """Orders that the table of states does not have, and sizes that no segment has."""

    @rule(event=st.sampled_from(Event), index=SEGMENT, wrong=st.sampled_from(["more", "negative", "fraction", "fewer"]))
    def ask_for_what_there_is_not(self, event: Event, index: int, wrong: str) -> None:
        """StateError or ConfigError, and not a call of the driver."""
        state = State(self.model.state)
        calls = {
            Event.COMMIT: lambda: self.tensor.commit(self.model.sizes),
            Event.LEASE: lambda: self.tensor.lease(0, "nobody"),
            Event.SLEEP: self.tensor.release_physical,
            Event.WAKE: self.tensor.restore,
        }
        if event not in TRANSITIONS[state]:
            error = self.attempt(calls[event], FaultPlan())
            assert isinstance(error, StateError)
            assert (error.state, error.event) == (state.value, event.value)
        else:
            sizes = self._no_sizes(index, wrong)
            error = self.attempt(lambda: self.tensor.commit(sizes, defragment=True), FaultPlan())
            assert isinstance(error, ConfigError)
        assert not self.driver.journal

    def _no_sizes(self, index: int, wrong: str) -> list[Any]:
        sizes: list[Any] = list(self.model.sizes)
        if wrong == "fewer":
            del sizes[index]
        else:
            sizes[index] = {"more": sizes[index] + 1, "negative": -1, "fraction": 0.5}[wrong]
        return sizes
