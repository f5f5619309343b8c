"""Every call of the vendor's library in every operation of a tensor fails in turn, alone and not alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import pytest

from tests.emulated.trial import CODES, UNKNOWN, Fault, VendorTrial
from tests.emulated.vendor import fine
from tests.emulator.control import Control
from tests.fine_host import FINE
from tests.test_faults import Scenario, every_scenario
from vmmcache import VmmDriver

COUNTED: Final = "counted: injected vendor faults"
FOREVER: Final = 1 << 30

RecordProperty = Callable[[str, object], None]


@pytest.fixture(scope="module")
def driver() -> VmmDriver:
    """On the second device, so that HIP has one to leave and one to come back to."""
    return fine(1, FINE)


@every_scenario
def test_each_call_fails_in_turn_with_every_code(
    scenario: Scenario, driver: VmmDriver, control: Control, record_property: RecordProperty
) -> None:
    injected = 0
    # The longest scenarios differ in the order of calls, not in the calls: one code in three of each call of theirs.
    share = 3 if scenario.name.startswith("defragment and keep") else 1
    for nth in itertools.count(1):
        codes = CODES[nth % share :: share]
        hits = sum(VendorTrial(scenario, driver, control).faulty((Fault(code, nth),)) for code in codes)
        injected += hits
        if not hits:
            break
        assert hits == len(codes)
    assert injected >= 3 * len(CODES)
    record_property(COUNTED, injected)


@every_scenario
def test_a_second_call_fails_too_at_once_or_later_or_while_undoing(
    scenario: Scenario, driver: VmmDriver, control: Control, record_property: RecordProperty
) -> None:
    injected = 0
    for first in itertools.count(1):
        for second in itertools.count(first + 1):
            hits = VendorTrial(scenario, driver, control).faulty((Fault(999, first), Fault(UNKNOWN, second)))
            injected += hits
            if hits < 2:
                break
        if not hits:
            break
    assert injected
    record_property(COUNTED, injected)


@every_scenario
@pytest.mark.parametrize("code", [1, 2, 700])
def test_every_call_from_one_on_fails_and_in_the_first_retry_one_more(
    scenario: Scenario, code: int, driver: VmmDriver, control: Control, record_property: RecordProperty
) -> None:
    injected = 0
    for nth in itertools.count(1):
        outage = Fault(code, nth, times=FOREVER)
        hits = VendorTrial(scenario, driver, control).faulty((outage,), (Fault(UNKNOWN, nth),))
        injected += hits
        if not hits:
            break
    assert injected
    record_property(COUNTED, injected)
