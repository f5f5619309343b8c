"""The manager's machine on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.cache.managed import light_collections
from tests.cache.manager_machine import ManagerMachine
from tests.fine_host import FineHostDriver
from tests.helpers import examples
from vmmcache import VmmDriver

PHASES = (Phase.reuse, Phase.generate, Phase.shrink)
"""Without explaining, which takes minutes under Python 3.11."""


@pytest.fixture(autouse=True)
def _known_budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "10MiB")
    with light_collections():
        yield


class HostMachine(ManagerMachine):
    def open_driver(self) -> VmmDriver:
        return FineHostDriver()


def test_random_lives_of_managers(record_property: Callable[[str, object], None]) -> None:
    """I4, I11, I12, S8, S11, S15, at once: contents, counts and books against a model, with calls refused."""
    run_state_machine_as_test(
        HostMachine, settings=settings(max_examples=examples(70), stateful_step_count=50, phases=PHASES)
    )
    record_property("counted: steps of the manager's machine", HostMachine.steps)
    record_property("counted: injected faults", HostMachine.injected)
    # Far below what any seed gives (2,400 and 55 to 90): else the test has not done what it says.
    assert HostMachine.steps >= 1_500
    assert HostMachine.injected >= 20
