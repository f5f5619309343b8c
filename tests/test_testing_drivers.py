"""Drivers of the testing package that wrap a driver: what they note, what they refuse, which order they insist on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import peek
from vmmcache import DriverError, Mapping, OutOfDeviceMemory, VmmDriver
from vmmcache.testing import DirtyDriver, RecordingDriver, WrappingDriver
from vmmcache.testing.order import CallOrder
from vmmcache.testing.recording import out_of_memory, unknown_code
from vmmcache.testing.strategies import FaultPlan


@pytest.fixture(autouse=True)
def _known_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "512KiB")


@pytest.fixture
def driver() -> RecordingDriver:
    return RecordingDriver(FineHostDriver())


def memory(driver: VmmDriver, granules: int = 1) -> Mapping:
    reservation = driver.reserve(4 * FINE)
    mapping = driver.map(reservation, 0, driver.create(granules * FINE))
    driver.grant([mapping])
    return mapping


def test_what_wraps_a_driver_says_what_the_driver_says() -> None:
    inner = FineHostDriver()
    for wrapper in (WrappingDriver(inner), RecordingDriver(inner), DirtyDriver(inner)):
        facts = ("name", "index", "device", "device_type", "memory_kind", "dlpack_device", "torch_device", "granule")
        assert [getattr(wrapper, fact) for fact in facts] == [getattr(inner, fact) for fact in facts]
        assert wrapper.fds_per_allocation == inner.fds_per_allocation
        assert wrapper.granularity() == inner.granularity()
        assert wrapper.memory_info() == inner.memory_info()
    assert DirtyDriver(inner).fresh_is_zero is False
    assert WrappingDriver(inner).fresh_is_zero is True


# DirtyDriver ----------------------------------------------------------------------------------------------------------


def test_fresh_memory_of_a_dirty_driver_is_full_of_rubbish_until_somebody_writes() -> None:
    driver = DirtyDriver(FineHostDriver())
    mapping = memory(driver, 2)
    assert peek(mapping.address, mapping.nbytes) == bytes((DirtyDriver.rubbish,)) * mapping.nbytes
    driver.write(mapping.address, b"mine")
    driver.unmap(mapping)
    again = driver.map(mapping.reservation, 2 * FINE, mapping.allocation)
    driver.grant([again])
    assert peek(again.address, 5) == b"mine" + bytes((DirtyDriver.rubbish,))


# RecordingDriver ------------------------------------------------------------------------------------------------------


def test_the_journal_has_every_call_in_order_with_its_outcome(driver: RecordingDriver) -> None:
    mapping = memory(driver)
    driver.write(mapping.address, b"1234")
    driver.fail(verb="copy")
    with pytest.raises(DriverError) as caught:
        driver.copy(mapping.address, mapping.address + 8, 8)
    driver.read(mapping.address, 2)
    assert [(call.verb, call.arguments) for call in driver.journal] == [
        ("reserve", (4 * FINE,)),
        ("create", (FINE,)),
        ("map", (mapping.address, FINE, mapping.allocation.handle)),
        ("grant", (mapping.address, FINE)),
        ("write", (mapping.address, 4)),
        ("copy", (mapping.address, mapping.address + 8, 8)),
        ("read", (mapping.address, 2)),
    ]
    assert [call.refused for call in driver.journal] == [False] * 5 + [True, False]
    assert driver.journal[0].outcome == mapping.address
    assert driver.journal[1].outcome == mapping.allocation
    assert driver.journal[5].outcome is caught.value


def test_a_refused_call_is_refused_instead_of_done(driver: RecordingDriver) -> None:
    free = driver.memory_info().free
    driver.fail(verb="create", error=out_of_memory)
    with pytest.raises(OutOfDeviceMemory) as caught:
        driver.create(FINE)
    assert (caught.value.requested, caught.value.call, caught.value.driver) == (FINE, "create", "host")
    assert driver.memory_info().free == free
    assert driver.create(FINE).nbytes == FINE
    assert driver.injected == 1


def refusals(driver: RecordingDriver, calls: int) -> str:
    """Which of so many calls are refused."""
    marks = ""
    for _ in range(calls):
        try:
            driver.synchronise()
        except DriverError as error:
            assert error.code in {1, 424242}
            assert error.name
            marks += "x"
        else:
            marks += "."
    return marks


@pytest.mark.parametrize(
    ("arm", "pattern"),
    [
        (lambda driver: driver.fail(), "x......"),
        (lambda driver: driver.fail(3), "..x...."),
        (lambda driver: driver.fail(2, times=3), ".xxx..."),
        (lambda driver: (driver.fail(2), driver.fail(5)), ".x..x.."),
        (lambda driver: (driver.fail(2), driver.fail(2)), ".x....."),
        (lambda driver: driver.fail(2, verb="synchronise", error=unknown_code), ".x....."),
        (lambda driver: driver.fail(2, verb="unmap"), "......."),
        (lambda driver: (driver.fail(2), driver.heal()), "......."),
        (lambda driver: FaultPlan(nth=(1, 4), verb="map").arm(driver), "x..x..."),
        (lambda driver: FaultPlan(verb="synchronise").arm(driver), "xxxxxxx"),
        (lambda driver: driver.fail_seeded(0.0, 1), "......."),
        (lambda driver: driver.fail_seeded(1.0, 1), "xxxxxxx"),
    ],
)
def test_calls_are_refused_as_planned(
    driver: RecordingDriver, arm: Callable[[RecordingDriver], object], pattern: str
) -> None:
    arm(driver)
    assert refusals(driver, 7) == pattern
    assert driver.injected == pattern.count("x")


def test_chance_is_the_same_for_the_same_seed() -> None:
    patterns = []
    for seed in (1, 1, 2):
        driver = RecordingDriver(FineHostDriver())
        driver.fail_seeded(0.5, seed)
        patterns.append(refusals(driver, 64))
    assert patterns[0] == patterns[1] != patterns[2]


# The order of calls ---------------------------------------------------------------------------------------------------


def _unmapped_while_working(driver: RecordingDriver) -> None:
    mapping = memory(driver)
    driver.synchronise()
    driver.launch(mapping.address, 1)
    driver.unmap(mapping)


def _unmapped_after_zero(driver: RecordingDriver) -> None:
    mapping = memory(driver)
    driver.zero(mapping.address, 1)
    driver.unmap(mapping)


def _unmapped_after_copy(driver: RecordingDriver) -> None:
    source, target = memory(driver), memory(driver)
    driver.copy(target.address, source.address, 1)
    driver.unmap(source)


def _unmapped_after_a_refused_wait(driver: RecordingDriver) -> None:
    mapping = memory(driver)
    driver.zero(mapping.address, 1)
    driver.fail(verb="synchronise")
    with pytest.raises(DriverError):
        driver.synchronise()
    driver.unmap(mapping)


def _freed_with_memory_in_it(driver: RecordingDriver) -> None:
    driver.free(memory(driver).reservation)


def _freed_twice(driver: RecordingDriver) -> None:
    reservation = driver.reserve(FINE)
    driver.free(reservation)
    driver.free(reservation)


def _released_twice(driver: RecordingDriver) -> None:
    allocation = driver.create(FINE)
    driver.release(allocation)
    driver.release(allocation)


def _mapped_over_a_mapping(driver: RecordingDriver) -> None:
    driver.map(memory(driver).reservation, 0, driver.create(2 * FINE))


def _granted_in_part(driver: RecordingDriver) -> None:
    reservation = driver.reserve(FINE)
    driver.map(reservation, 0, driver.create(FINE))
    driver._grant(reservation.address, FINE // 2)


def _touched_before_the_grant(driver: RecordingDriver) -> None:
    mapping = driver.map(driver.reserve(FINE), 0, driver.create(FINE))
    driver.zero(mapping.address, 1)


@pytest.mark.parametrize(
    "rule_broken",
    [
        _unmapped_while_working,
        _unmapped_after_zero,
        _unmapped_after_copy,
        _unmapped_after_a_refused_wait,
        _freed_with_memory_in_it,
        _freed_twice,
        _released_twice,
        _mapped_over_a_mapping,
        _granted_in_part,
        _touched_before_the_grant,
    ],
)
def test_a_rule_that_is_broken_is_an_assertion(
    driver: RecordingDriver, rule_broken: Callable[[RecordingDriver], None]
) -> None:
    with pytest.raises(AssertionError):
        rule_broken(driver)


def _order_after_all_that_is_allowed() -> CallOrder:
    order = CallOrder()
    order.did_reserve(0, 8)
    order.did_create(1, 4)
    order.may_map(4, 4, 1)
    order.did_map(4, 4, 1)
    order.may_grant(4, 4)
    order.did_grant(4, 4)
    order.may_touch("zero", 4, 4)
    order.did_start(4, 4)
    order.did_synchronise()
    order.may_unmap(4, 4)
    return order


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("did_reserve", (4, 8)),
        ("may_free", (0, 4)),
        ("may_free", (0, 8)),
        ("did_create", (1, 4)),
        ("may_release", (2,)),
        ("may_map", (0, 4, 2)),
        ("may_map", (0, 2, 1)),
        ("may_map", (2, 4, 1)),
        ("may_map", (8, 4, 1)),
        ("may_grant", (0, 8)),
        ("may_grant", (4, 2)),
        ("may_unmap", (4, 2)),
        ("may_unmap", (0, 4)),
        ("may_touch", ("zero", 3, 2)),
        ("may_touch", ("zero", 7, 2)),
    ],
)
def test_the_model_of_the_order_knows_the_rules_by_itself(verb: str, arguments: tuple[object, ...]) -> None:
    # The driver's own books refuse most of these before: the model has to be right without them.
    order = _order_after_all_that_is_allowed()
    with pytest.raises(AssertionError):
        getattr(order, verb)(*arguments)


def test_what_is_left_is_found(driver: RecordingDriver) -> None:
    driver.check_clean()
    mapping = driver.map(driver.reserve(FINE), 0, driver.create(FINE))
    with pytest.raises(AssertionError, match="without access"):
        driver.check_granted()
    driver.grant([mapping])
    driver.check_granted()
    give_back: list[tuple[Callable[[], None], str]] = [
        (lambda: driver.unmap(mapping), "mappings"),
        (lambda: driver.release(mapping.allocation), "allocations"),
        (lambda: driver.free(mapping.reservation), "reservations"),
    ]
    for give, left in give_back:
        with pytest.raises(AssertionError, match=left):
            driver.check_clean()
        give()
    driver.check_clean()
