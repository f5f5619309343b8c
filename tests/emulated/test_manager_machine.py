"""The manager's machine on an emulated device."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.cache.managed import light_collections
from tests.cache.manager_machine import ManagerMachine
from tests.emulated.vendor import fine
from tests.fine_host import FINE
from tests.helpers import examples
from vmmcache import VmmDriver


class VendorMachine(ManagerMachine):
    def open_driver(self) -> VmmDriver:
        return fine(0, FINE)


def test_random_lives_of_managers(record_property: Callable[[str, object], None]) -> None:
    """I4, I11, I12, S8, S11, S15, on the vendor's library with memory that is full of somebody's bytes."""
    with light_collections():
        run_state_machine_as_test(VendorMachine, settings=settings(max_examples=examples(45), stateful_step_count=50))
    record_property("counted: steps of the manager's machine", VendorMachine.steps)
    record_property("counted: injected vendor faults", VendorMachine.injected)
    assert VendorMachine.steps >= 1_200
