"""Every driver call of every operation of a backing on VMM memory is refused in turn.

After each failure slots and contents are as its docstring says, a retry gets where the operation gets without faults,
and close leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.cache.backing_suite import CAPACITY, LAYOUT, content, fill, seen, zero
from tests.fine_host import FINE, FineHostDriver, KeepingDriver
from tests.helpers import usage
from vmmcache import DriverError
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.planning.layout import Arrangement
from vmmcache.testing import DirtyDriver, RecordingDriver
from vmmcache.testing.recording import Refusal, invalid_value, out_of_memory

COUNTED: Final = "counted: injected faults under a backing"

Step = Callable[[VmmBacking], object]
Contents = dict[tuple[int, int], tuple[bytes, ...]]
RecordProperty = Callable[[str, object], None]


@dataclass(frozen=True)
class Scenario:
    name: str
    before: tuple[Step, ...]
    operation: Step
    atomic: bool = False
    """Whether a failure leaves everything as it was."""
    lossy: bool = False
    """Whether slots may lose their contents, and may be fewer than before and after."""
    repeatable: bool = True
    """Whether the operation gets to the same contents after it was half done."""


def commit(*counts: int, **how: bool) -> Step:
    return lambda backing: backing.commit(counts, **how)


def write(backing: VmmBacking) -> None:
    backing.write_slots(0, [1, 2, 7, 4], content(backing, 0, 4, tag=9))


FULL: Final = (commit(9, 4, 3), fill)
LARGE: Final = (commit(3, 2, 1), commit(21, 18, 5), fill)

SCENARIOS: Final = [
    Scenario("first commit", (), commit(3, 2, 1), atomic=True),
    Scenario("growth", FULL, commit(21, 18, 5), atomic=True),
    Scenario("growth of one group, shrink of another", FULL, commit(21, 2, 3)),
    Scenario("shrink", LARGE, commit(2, 0, 1)),
    Scenario("shrink, defragmented", LARGE, commit(2, 7, 1, defragment=True)),
    Scenario("final commit", LARGE, commit(9, 20, 1, defragment=True, keep=False), lossy=True),
    Scenario("move", FULL, lambda backing: backing.move_slots(0, [(8, 5), (7, 4), (6, 2)])),
    Scenario(
        "move along a chain", FULL, lambda backing: backing.move_slots(0, [(8, 5), (5, 2), (6, 3)]), repeatable=False
    ),
    Scenario("read", FULL, lambda backing: backing.read_slots(0, [1, 2, 7]), atomic=True),
    Scenario("write", FULL, write),
    Scenario("sleep", FULL, lambda backing: backing.sleep()),
    Scenario("sleep with a backup", LARGE, lambda backing: backing.sleep(backup=True)),
    Scenario("wake", (*LARGE, lambda backing: backing.sleep()), lambda backing: backing.wake(), atomic=True),
    Scenario(
        "wake with a backup",
        (*FULL, lambda backing: backing.sleep(backup=True)),
        lambda backing: backing.wake(),
        atomic=True,
    ),
    Scenario("close", FULL, lambda backing: backing.close()),
]


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left() -> Iterator[None]:
    """The kernel has to agree with the driver's books."""
    before = usage()
    yield
    assert usage() == before


class Trial:
    """A scenario up to its operation, on a driver of its own."""

    def __init__(self, scenario: Scenario, arrangement: Arrangement, host: FineHostDriver) -> None:
        self.driver = RecordingDriver(DirtyDriver(host))
        self.backing = VmmBacking(PoolMap(LAYOUT, arrangement, FINE), CAPACITY, self.driver)
        self.scenario = scenario
        for step in scenario.before:
            step(self.backing)

    def state(self) -> tuple[str, tuple[int, ...], int, Contents]:
        awake = self.backing.state not in ("asleep", "closed")
        return (
            self.backing.state,
            self.backing.slots,
            self.backing.physical_bytes,
            seen(self.backing) if awake else {},
        )

    def end(self) -> None:
        self.backing.close()
        self.driver.check_clean()


def between(now: Contents, before: Contents, after: Contents, backing: VmmBacking, *, lossy: bool) -> bool:
    """Whether each part of each slot is what it was or what it is to become (or nothing, where that may be)."""
    for place, parts in now.items():
        empty = zero(backing, place[0])
        allowed = [before.get(place, empty), after.get(place, before.get(place, empty))]
        if lossy:
            allowed.append(empty)
        if not all(part in choices for part, *choices in zip(parts, *allowed, strict=True)):
            return False
    return True


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
@pytest.mark.parametrize("arrangement", ["block-major", "layer-major"])
@pytest.mark.parametrize(
    ("error", "times"), [(invalid_value, 1), (out_of_memory, 1 << 30)], ids=["once", "from then on"]
)
def test_each_call_is_refused_in_turn(
    scenario: Scenario, arrangement: Arrangement, error: Refusal, times: int, record_property: RecordProperty
) -> None:
    reference = Trial(scenario, arrangement, FineHostDriver())
    start = len(reference.driver.journal)
    before = reference.state()
    looked = len(reference.driver.journal)
    scenario.operation(reference.backing)
    calls = [call.verb for call in reference.driver.journal[looked:]]
    after = reference.state()
    reference.end()
    assert calls
    assert start
    for nth in range(1, len(calls) + 1):
        trial = Trial(scenario, arrangement, FineHostDriver())
        trial.driver.fail(nth, times=times, error=error)
        with pytest.raises(DriverError):
            scenario.operation(trial.backing)
        trial.driver.heal()
        assert trial.driver.injected >= 1
        now = trial.state()
        if scenario.atomic:
            # What an undo could not give back is owed, and counted until it is.
            assert (now[:2], now[3]) == (before[:2], before[3])
            assert now[2] == before[2] or times > 1
        else:
            assert all(
                (0 if scenario.lossy else min(pair)) <= count <= max(pair)
                for count, *pair in zip(now[1], before[1], after[1], strict=True)
            )
            assert between(now[3], before[3], after[3], trial.backing, lossy=scenario.lossy)
        if times == 1:
            trial.driver.check_granted()  # I5; where undoing fails, too, what is not granted is owed
        scenario.operation(trial.backing)
        again = trial.state()
        assert again[:3] == after[:3]
        if scenario.repeatable and not scenario.lossy:
            assert again[3] == after[3]
        trial.end()
    record_property(COUNTED, len(calls))


def test_contents_survive_a_sleep_that_was_refused() -> None:
    """S11: the backup of the first try is not lost by the second."""
    for nth in range(1, 12):
        driver = RecordingDriver(DirtyDriver(FineHostDriver()))
        backing = VmmBacking(PoolMap(LAYOUT, "block-major", FINE), CAPACITY, driver)
        backing.commit((9, 4, 3))
        there = fill(backing)
        driver.fail(nth, verb="release")
        try:
            backing.sleep(backup=True)
        except DriverError:
            assert backing.state == "asleep"
            backing.sleep()
        driver.heal()
        backing.wake()
        assert seen(backing) == there
        backing.close()
        driver.check_clean()


def test_memory_that_comes_back_only_with_its_addresses_comes_back() -> None:
    """D10 under a backing: awake at the same addresses."""
    driver = KeepingDriver()
    backing = VmmBacking(PoolMap(LAYOUT, "block-major", FINE), CAPACITY, driver)
    backing.commit((9, 4, 3))
    view = backing.views()["layers.0"]["key"]
    address = view.data_ptr()
    for _ in range(3):
        backing.sleep()
        assert not any(driver.kept.values())
        backing.wake()
        assert backing.view("layers.0", "key").data_ptr() == address
    del view
    backing.close()
