"""The stateful machine over the vendor's driver, while calls of the vendor's library fail at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.emulated.trial import UNKNOWN, check_error
from tests.emulated.vendor import UNIFORM, fine, function, leave, stance
from tests.emulator.control import Control
from tests.fine_host import FINE
from tests.helpers import peek, poke
from vmmcache import ConfigError, DriverError, LeaseError, StateError, VmmDriver
from vmmcache.testing import TensorMachine
from vmmcache.testing.recording import Refusal, invalid_value, out_of_memory, unknown_code
from vmmcache.testing.strategies import FaultPlan

FLOOR: Final = 5_000
CODES: Final[dict[Refusal, int]] = {invalid_value: 1, out_of_memory: 2, unknown_code: UNKNOWN}
FOREVER: Final = 1 << 30


class VendorMachine(TensorMachine):
    """Plans of the machine become faults of the library, far below where it refuses verbs by itself."""

    # Runtimes for allocations of one size drop errors of mapping by themselves, and an outage that answers what memory
    # answers which was never mapped cannot be told from it. The machine goes over them, too, while nothing fails.
    faults: ClassVar[bool] = not UNIFORM
    views: ClassVar[bool] = False
    vendor: ClassVar[VmmDriver]
    control: ClassVar[Control]

    def open_driver(self) -> VmmDriver:
        return self.vendor

    def peek(self, address: int, nbytes: int) -> bytes:
        return peek(address, nbytes)

    def poke(self, address: int, data: bytes) -> None:
        poke(address, data)

    def attempt(self, operation: Callable[[], object], plan: FaultPlan) -> Exception | None:
        self.step()
        control, driver = self.control, self.driver
        driver.journal.clear()
        driver.launch(self.base, driver.order.reserved.get(self.base, 0))
        before, since = stance(control), control.mark()
        self._arm(plan)
        error: Exception | None = None
        try:
            operation()
        except (ConfigError, StateError, LeaseError, DriverError) as caught:
            error = caught.with_traceback(None)
        finally:
            control.fail_nothing()
        faults = [record for record in control.journal(since) if "injected" in record.arguments]
        type(self).injected += len(faults)
        leave(control, before, faults)
        if isinstance(error, DriverError):
            check_error(error, faults)
            if not driver.journal:
                # The thread could not enter the device, so nothing has happened: once more.
                return self.attempt(operation, FaultPlan())
        elif error is None:
            check_error(None, faults)
        return error

    def _arm(self, plan: FaultPlan) -> None:
        code = CODES[plan.error]
        for nth in plan.nth:
            self.control.fail("*", code, nth=nth)
        if plan.verb is not None:
            self.control.fail(function(plan.verb), code, times=FOREVER)
        if plan.rate:
            self.control.fail_randomly(["*"], plan.rate, sorted({code, 999}), plan.seed)


@pytest.mark.timeout(600)  # one that finds something is given the time to find the smallest example of it
def test_the_machine_finds_nothing(control: Control, record_property: Callable[[str, object], None]) -> None:
    VendorMachine.vendor, VendorMachine.control = fine(1, FINE), control
    run_state_machine_as_test(
        VendorMachine, settings=settings(max_examples=180, stateful_step_count=40, derandomize=True)
    )
    record_property("counted: steps of the stateful machine", VendorMachine.steps)
    record_property("counted: injected vendor faults", VendorMachine.injected)
    assert VendorMachine.steps >= FLOOR
    assert VendorMachine.injected >= (FLOOR // 5 if VendorMachine.faults else 0)
    assert control.violations() == []
