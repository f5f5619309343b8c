"""The manager's life on emulated devices, without torch's views: the same calls, marks in device memory, faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.cache.managed import CYCLES, FULL, LAYOUT, light_collections, mark, marks, with_driver
from tests.cache.manager_trial import SCENARIOS, ManagerTrial, Scenario, Seen
from tests.emulated.trial import UNKNOWN
from tests.emulated.vendor import NAME, fine, leave, stance
from tests.emulator.control import Control
from tests.fine_host import FINE
from vmmcache import DriverError, DriverUnavailable, KVCacheManager, MemoryBudget, VmmDriver
from vmmcache.testing import RecordingDriver
from vmmcache.units import MIB

COUNTED = "counted: injected vendor faults"
RecordProperty = Callable[[str, object], None]


@pytest.fixture
def driver() -> VmmDriver:
    return fine(0, FINE)


@pytest.fixture(autouse=True)
def _light_collections() -> Iterator[None]:
    with light_collections():
        yield


def test_the_whole_life(driver: VmmDriver, control: Control) -> None:
    """S2, S9, S11, S15: memory is what the device says, a neighbour's use counts, nothing is left."""
    with with_driver(driver, vmm=True) as manager:
        assert manager.mode == "measured"
        total = driver.memory_info().total
        base = manager._core.path.backing.memory.registrable()[0].base
        assert manager.ensure(10) == (10, 10)
        for request in manager.slots.dummy(tokens=32):
            manager.slots.free(request)
        control.set(other_use=3 * MIB)
        with manager.warm_up() as warm:
            warm.ran("mixed_step", tokens=32)
        report = manager.finalize()
        assert report.budget is not None
        assert report.budget.headroom == total - 3 * MIB
        assert report.nbytes <= total - 4 * MIB
        assert report.memory_source == "driver"
        assert control.used(0) == report.nbytes
        request = manager.slots.allocate(64, 40)
        for group, cycle in CYCLES.items():
            for slot in request.blocks(cycle):
                if slot >= 0:
                    mark(manager, group, slot, 9)
        manager.slots.suspend(request)
        for backup in (True, False):
            slept = manager.sleep(backup=backup)
            assert slept is not None
            assert slept.came_back == slept.released == report.nbytes
            assert control.used(0) == 0
            manager.wake()
            assert control.used(0) == report.nbytes
            assert manager.slots.resume(request)
            for slot in request.blocks(0):
                assert marks(manager, FULL, slot) == ({9} if backup else {0})
            manager.slots.suspend(request)
        smaller = manager.resize(3 * MIB)
        assert control.used(0) == smaller.nbytes <= 3 * MIB
        assert manager._core.path.backing.memory.registrable()[0].base == base
        control.set(other_use=0)
        manager.resize(6 * MIB)
    assert control.used(0) == 0


def test_a_device_string_is_probed_first(driver: VmmDriver) -> None:
    with KVCacheManager(LAYOUT, f"{NAME}:0", MemoryBudget(nbytes=4 * MIB)) as manager:
        assert (manager.mode, manager.fallback_reason, manager.device) == ("measured", None, f"{NAME}:0")
        assert manager.finalize().nbytes <= 4 * MIB


def test_where_addresses_are_refused_and_torch_has_no_such_device_the_error_says_both(
    driver: VmmDriver, control: Control
) -> None:
    """S5: all would take the estimated path, and here there is none."""
    control.fail("cuMemAddressReserve" if NAME == "cuda" else "hipMemAddressReserve", 2, times=2)
    with pytest.raises(DriverUnavailable) as caught:
        with_driver(driver)
    assert "no accelerator" in str(caught.value)
    control.fail("cuMemAddressReserve" if NAME == "cuda" else "hipMemAddressReserve", 2, times=2)
    with pytest.raises(DriverUnavailable, match="vmm=True, and"):
        with_driver(driver, vmm=True)


CASES = [
    pytest.param(scenario, code, id=f"{scenario.name}, {code}")
    for scenario in SCENARIOS
    # Lack of memory is answered in a way of its own where memory is asked for.
    for code in ((UNKNOWN, 2) if scenario.name == "resize down" else (UNKNOWN,))
]


@pytest.mark.parametrize(("scenario", "code"), CASES)
def test_whatever_call_fails(
    scenario: Scenario, code: int, driver: VmmDriver, control: Control, record_property: RecordProperty
) -> None:
    injected = 0
    for nth in itertools.count(1):
        here = stance(control)
        trial = ManagerTrial(scenario, RecordingDriver(driver))
        before = Seen.of(trial.manager)
        since, faults = control.mark(), control.count("faults")
        control.fail("*", code, nth=nth)
        error = trial.attempt()
        control.fail_nothing()
        leave(control, here, [record for record in control.journal(since) if "injected" in record.arguments])
        trial.judge(error, before, refused=control.count("faults") > faults)
        if error is not None:
            assert error.code in (code, None)
            assert trial.attempt() is None
            trial.judge(None, before)
        trial.finish()
        assert control.used(0) == 0
        if control.count("faults") == faults:
            break
        injected += 1
    record_property(COUNTED, injected)
    assert injected >= 1


def test_a_manager_that_cannot_be_made_leaves_nothing(
    driver: VmmDriver, control: Control, record_property: RecordProperty
) -> None:
    injected = 0
    for nth in itertools.count(1):
        here, since = stance(control), control.mark()
        control.fail("*", UNKNOWN, nth=nth)
        try:
            manager = with_driver(driver, vmm=True)
        except DriverError:
            pass
        else:
            control.fail_nothing()
            manager.close()
        control.fail_nothing()
        records = [record for record in control.journal(since) if "injected" in record.arguments]
        leave(control, here, records)
        assert control.leaks() is None
        if not records:
            break
        injected += 1
    record_property(COUNTED, injected)
    assert injected >= 10
