"""Every driver call of every operation of a manager is refused in turn, on the host; then from then on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cache.managed import with_driver
from tests.cache.manager_trial import SCENARIOS, ManagerTrial, Scenario, Seen
from tests.fine_host import FineHostDriver
from vmmcache import DriverError
from vmmcache.testing import RecordingDriver
from vmmcache.testing.recording import Refusal, invalid_value, out_of_memory

pytestmark = pytest.mark.usefixtures("seven_mib")

COUNTED = "counted: injected faults"
FOREVER = 1 << 30
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])

RecordProperty = Callable[[str, object], None]


def trial(scenario: Scenario) -> ManagerTrial:
    return ManagerTrial(scenario, RecordingDriver(FineHostDriver()))


@every_scenario
@pytest.mark.parametrize("refusal", [invalid_value, out_of_memory])
def test_each_call_is_refused_in_turn(scenario: Scenario, refusal: Refusal, record_property: RecordProperty) -> None:
    """I4, for a whole cache: all or nothing, nothing lost, and a retry succeeds."""
    injected = 0
    while True:
        case = trial(scenario)
        before = Seen.of(case.manager)
        case.driver.fail(injected + 1, error=refusal)
        error = case.attempt()
        refused = case.driver.injected
        case.driver.heal()
        case.judge(error, before, refused=bool(refused))
        if error is not None:
            assert case.attempt() is None, "the retry failed, too"
            case.judge(None, before)
        case.finish()
        if not refused:
            break
        injected += 1
    record_property(COUNTED, injected)
    assert injected >= 1


@every_scenario
def test_every_call_from_one_on_is_refused(scenario: Scenario, record_property: RecordProperty) -> None:
    """Undoing is refused as well: there may be less, and what there is is known; when it is over, all goes on."""
    injected = nth = 0
    while True:
        nth += 1
        case = trial(scenario)
        before = Seen.of(case.manager)
        case.driver.fail(nth, times=FOREVER)
        error = case.attempt()
        refused = case.driver.injected
        case.driver.heal()
        if error is None:
            case.judge(None, before, refused=bool(refused))
        elif case.manager.state == "closed":
            assert case.attempt() is None
        else:
            if case.manager.slots.counts != case.manager.committed:
                # The driver refused to put back what was being exchanged: the error says that this was lost.
                assert any("undoing failed too" in note for note in error.__notes__)
                case.request = None
            assert case.attempt() is None, "the retry failed, too"
            case.judge(None, before, once=False)
        case.finish()
        injected += refused
        if not refused:
            break
    record_property(COUNTED, injected)


@pytest.mark.parametrize("refusal", [invalid_value, out_of_memory])
def test_a_manager_that_cannot_be_made_leaves_nothing(refusal: Refusal, record_property: RecordProperty) -> None:
    injected = 0
    while True:
        driver = RecordingDriver(FineHostDriver())
        driver.fail(injected + 1, error=refusal)
        try:
            manager = with_driver(driver, vmm=True)
        except DriverError:
            assert driver.injected == 1
            driver.check_clean()
            injected += 1
            continue
        assert not driver.injected
        driver.heal()
        manager.close()
        break
    record_property(COUNTED, injected)
    assert injected >= 3
