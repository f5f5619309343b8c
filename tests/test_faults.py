"""Every driver call of every operation is refused in turn: by itself, with another one, and from then on.

After each failure the tensor is as its docstrings say, the accounts are right, a retry succeeds, and close leaves
nothing. What a failure may have done is judged by `vmmcache.testing.witness`, which the stateful machine uses, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import peek, poke, usage
from vmmcache import DriverError, ExtensibleTensor
from vmmcache.testing import DirtyDriver, RecordingDriver, checks
from vmmcache.testing.model import Model
from vmmcache.testing.recording import Refusal, invalid_value, out_of_memory, unknown_code
from vmmcache.testing.strategies import Commit, Configuration, Operation, Sleep, Wake
from vmmcache.testing.witness import Witness

G: Final = FINE
HALF: Final = G // 2
COUNTED: Final = "counted: injected faults"
FOREVER: Final = 1 << 30

VERBS: Final = ("create", "map", "grant", "unmap", "release", "zero", "copy", "synchronise")

Arm = Callable[[RecordingDriver], None]
RecordProperty = Callable[[str, object], None]


@dataclass(frozen=True)
class Close:
    """`ExtensibleTensor.close`."""

    def apply(self, tensor: ExtensibleTensor) -> None:
        tensor.close()


@dataclass(frozen=True)
class Scenario:
    """An operation, and how the tensor came to where it starts from."""

    name: str
    segments: tuple[int, ...]
    before: tuple[Operation, ...]
    operation: Operation | Close
    chunk: int | None = None


# Four segments that share granules: A ends in the middle of one, B lies within it, C begins there, D stands alone.
SHARED = (G + HALF, HALF // 2, HALF // 2 + G, 2 * G)
FULL = Commit(SHARED)

SCENARIOS = [
    Scenario("first growth", (4 * G,), (), Commit((2 * G,))),
    Scenario("growth", (4 * G,), (Commit((G,)),), Commit((3 * G,))),
    Scenario("growth of several segments", (2 * G,) * 3, (Commit((G, 0, 1)),), Commit((2 * G, G, G + 1))),
    Scenario("growth in chunks", (4 * G,), (Commit((1,)),), Commit((4 * G,)), chunk=G),
    Scenario("growth that needs no memory", (2 * G,), (Commit((1,)),), Commit((G,))),
    Scenario("growth in granules that segments share", SHARED, (Commit((HALF, 0, HALF, 0)),), FULL),
    Scenario("shrink", (4 * G,), (Commit((4 * G,)),), Commit((G,)), chunk=G),
    Scenario("shrink that gives nothing back", (4 * G,), (Commit((4 * G,)),), Commit((G,))),
    Scenario("shrink to nothing", (2 * G,) * 2, (Commit((2 * G, G)),), Commit((0, 0))),
    Scenario("growth and shrink at once", (2 * G,) * 3, (Commit((2 * G, G, 0)),), Commit((0, 2 * G, G)), chunk=G),
    Scenario("shrink in granules that segments share", SHARED, (FULL,), Commit((HALF, 0, 0, G))),
    Scenario("first commit, defragmented", (2 * G,) * 2, (), Commit((G, G), defragment=True)),
    Scenario("defragment", (4 * G,), (Commit((G,)), Commit((3 * G,))), Commit((3 * G,), defragment=True)),
    Scenario(
        "defragment several segments",
        (4 * G,) * 3,
        (Commit((G, 2 * G, G)), Commit((2 * G, 2 * G, 3 * G))),
        Commit((G, 3 * G, 2 * G), defragment=True),
    ),
    Scenario("defragment shared granules", SHARED, (FULL,), Commit((HALF, 0, G, 2 * G), defragment=True)),
    Scenario(
        "defragment and keep",
        (4 * G,),
        (Commit((G,)), Commit((2 * G,)), Commit((3 * G,))),
        Commit((2 * G + 5,), defragment=True, keep=True),
    ),
    Scenario(
        "defragment and keep several segments",
        (3 * G,) * 3,
        (Commit((G, 2 * G, G)), Commit((2 * G, 2 * G, 2 * G))),
        Commit((2 * G - 5, 2 * G, 3 * G), defragment=True, keep=True),
    ),
    Scenario(
        "defragment and keep shared granules",
        SHARED,
        (Commit((*SHARED[:3], G), defragment=True), FULL),
        Commit((HALF, 0, G, 2 * G), defragment=True, keep=True),
    ),
    Scenario(
        "defragment and keep a segment cut away between others",
        (G + HALF, 2 * G, HALF + G, 2 * G),
        (Commit((G + HALF, 2 * G, HALF + G, G), defragment=True), Commit((G + HALF, 2 * G, HALF + G, 2 * G))),
        Commit((HALF, 0, G, 2 * G), defragment=True, keep=True),
    ),
    Scenario("sleep", (2 * G,) * 2, (Commit((2 * G, G)),), Sleep(), chunk=G),
    Scenario("sleep with a backup", SHARED, (FULL,), Sleep(backup=True)),
    Scenario("wake", (2 * G,) * 2, (Commit((2 * G, G)), Sleep()), Wake(), chunk=G),
    Scenario("wake with a backup", SHARED, (FULL, Sleep(backup=True)), Wake()),
    Scenario("close", (2 * G,) * 2, (Commit((2 * G, G)),), Close(), chunk=G),
    Scenario("close before anything was committed", (2 * G,), (), Close()),
    Scenario("close while asleep", (2 * G,), (Commit((G,)), Sleep(backup=True)), Close()),
]

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
every_error = pytest.mark.parametrize("error", [invalid_value, unknown_code, out_of_memory])
on_clean_and_dirty_memory = pytest.mark.parametrize("dirty", [False, True], ids=["clean", "dirty"])


class Trial:
    """A scenario up to its operation, on a driver of its own, with marks at every border of every segment."""

    def __init__(self, scenario: Scenario, *, dirty: bool) -> None:
        host = FineHostDriver()
        self.driver = RecordingDriver(DirtyDriver(host) if dirty else host)
        self.operation = scenario.operation
        self.tensor = Configuration(scenario.segments, scenario.chunk).tensor(self.driver)
        self.model = Model(scenario.segments, self.driver.granule)
        for operation in scenario.before:
            self._perform(operation)
            self._mark()

    def run(self, *arms: Arm) -> int:
        """Do the operation with calls refused, once for each of `arms`, then without; look each time; close.

        Returns how many calls were refused.
        """
        for arm in arms:
            before = self.driver.injected
            arm(self.driver)
            failed = self._perform(self.operation)
            self.driver.heal()
            self._look()
            assert failed == (self.driver.injected > before)
            if not failed:
                break
        else:
            assert not self._perform(self.operation), "the retry failed, too"
            self._look()
        self.tensor.close()
        self.driver.check_clean()
        return self.driver.injected

    def _perform(self, operation: Operation | Close) -> bool:
        self.driver.launch(self.tensor.base_address, self.tensor.capacity)
        witness = Witness(self.tensor, self.driver, self.model, peek)
        error = None
        try:
            operation.apply(self.tensor)
        except DriverError as caught:
            error = caught
        match operation:
            case Commit(sizes, defragment, keep):
                witness.committed(error, sizes, defragment=defragment, keep=keep)
            case Sleep(backup):
                witness.slept(error, backup=backup)
            case Wake():
                witness.woke(error)
            case Close():
                witness.closed(error)
        return error is not None

    def _mark(self) -> None:
        for index, start in enumerate(self.model.starts):
            for position, _ in list(self.model.expected(index)):
                value = 1 + (position + index) % 251
                poke(self.tensor.base_address + start + position, bytes((value,)))
                self.model.write(index, position, value)

    def _look(self) -> None:
        checks.check_shape(self.tensor, self.model)
        checks.check_books(self.tensor, self.driver)
        checks.check_backing(self.tensor, self.driver, self.model)
        checks.check_contents(self.tensor, self.model, peek)
        if self.model.state != "closed":
            checks.check_descriptors(self.tensor, [])


def refuse(nth: int = 1, *, verb: str | None = None, times: int = 1, error: Refusal = invalid_value) -> Arm:
    return lambda driver: driver.fail(nth, verb=verb, times=times, error=error)


def both(first: Arm, second: Arm) -> Arm:
    def arm(driver: RecordingDriver) -> None:
        first(driver)
        second(driver)

    return arm


def calls_of(scenario: Scenario, *, dirty: bool) -> list[str]:
    """Which calls the operation makes when none is refused."""
    trial = Trial(scenario, dirty=dirty)
    assert not trial._perform(trial.operation)
    calls = [call.verb for call in trial.driver.journal]
    trial.tensor.close()
    return calls


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left() -> Iterator[None]:
    """The kernel has to agree with the driver's books."""
    before = usage()
    yield
    assert usage() == before


@pytest.fixture(autouse=True)
def _known_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "1GiB")


@every_scenario
@every_error
@on_clean_and_dirty_memory
def test_each_call_is_refused_in_turn(
    scenario: Scenario, error: Refusal, dirty: bool, record_property: RecordProperty
) -> None:
    calls = calls_of(scenario, dirty=dirty)
    assert calls
    for nth in range(1, len(calls) + 1):
        assert Trial(scenario, dirty=dirty).run(refuse(nth, error=error)) == 1
    record_property(COUNTED, len(calls))


@every_scenario
def test_another_call_is_refused_later_or_while_undoing(scenario: Scenario, record_property: RecordProperty) -> None:
    calls = len(calls_of(scenario, dirty=True))
    injected = 0
    for first in range(1, calls + 1):
        for second in itertools.count(first + 1):
            refused = Trial(scenario, dirty=True).run(both(refuse(first), refuse(second, error=unknown_code)))
            injected += refused
            if refused < 2:
                break
    record_property(COUNTED, injected)
    assert injected >= calls


@every_scenario
def test_a_call_of_the_retry_is_refused_too(scenario: Scenario, record_property: RecordProperty) -> None:
    calls = len(calls_of(scenario, dirty=True))
    injected = 0
    for first in range(1, calls + 1):
        for second in itertools.count(1):
            refused = Trial(scenario, dirty=True).run(refuse(first), refuse(second, error=out_of_memory))
            injected += refused
            if refused < 2:
                break
    record_property(COUNTED, injected)
    assert injected >= 2 * calls


@every_scenario
def test_every_call_from_one_on_is_refused(scenario: Scenario, record_property: RecordProperty) -> None:
    calls = len(calls_of(scenario, dirty=True))
    injected = 0
    for nth in range(1, calls + 1):
        outage = refuse(nth, times=FOREVER)
        injected += Trial(scenario, dirty=True).run(outage, outage)
    record_property(COUNTED, injected)
    assert injected > calls


@every_scenario
@on_clean_and_dirty_memory
def test_every_call_of_one_verb_is_refused(scenario: Scenario, dirty: bool, record_property: RecordProperty) -> None:
    injected = 0
    for verb in set(calls_of(scenario, dirty=dirty)):
        for first in (None, *VERBS):
            # Together with one other call that fails the operation, so that undoing meets the refusals.
            arm = refuse(verb=verb, times=FOREVER)
            injected += Trial(scenario, dirty=dirty).run(arm if first is None else both(refuse(verb=first), arm))
    record_property(COUNTED, injected)
    assert injected


@every_error
def test_addresses_that_are_refused_leave_nothing(error: Refusal, record_property: RecordProperty) -> None:
    driver = RecordingDriver(FineHostDriver())
    driver.fail(error=error)
    with pytest.raises(DriverError) as caught:
        ExtensibleTensor(4 * G, driver)
    assert caught.value.call == "reserve"
    driver.check_clean()
    ExtensibleTensor(4 * G, driver).close()
    driver.check_clean()
    record_property(COUNTED, driver.injected)
