"""One operation of a manager while calls of the driver fail, and what may have become of it. Without torch.

The host's tests refuse verbs of the driver, those on emulated libraries calls of the vendor's functions; what came of
it is judged here, from outside: by what the manager says, by marks in memory, and by the books of a recording driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.cache.managed import CYCLES, mark, marks, with_driver
from vmmcache import DriverError, KVCacheManager
from vmmcache.cache.requests import CacheRequest, RequestState
from vmmcache.testing import RecordingDriver
from vmmcache.units import MIB

KEPT: Final = 0x5A
"""In every slot of the request that is there while operations fail."""

Step = Callable[[KVCacheManager], object]


@dataclass(frozen=True)
class Scenario:
    """An operation, how the manager came to where it starts from, and the state that it leads to."""

    name: str
    before: tuple[Step, ...]
    operation: Step
    after: str
    gives_back: bool = False
    """Whether an error may leave it done (named in its docstring)."""
    request: str = ""
    """A request that is there meanwhile: "active", "suspended", "backed up", or none."""


def warm(manager: KVCacheManager) -> None:
    manager.ensure(20)


def warm_too_much(manager: KVCacheManager) -> None:
    """All that warm-up may have; and then it shows a peak for which that leaves no room."""
    manager.ensure(manager.capacity)
    manager._core.shared.saw_peak(2 * MIB)


def decide(manager: KVCacheManager) -> None:
    manager.finalize()


def apply(manager: KVCacheManager) -> None:
    manager.apply(manager.measure())


def grow_to_more(manager: KVCacheManager) -> None:
    manager.resize(4 * MIB)


def shrink(manager: KVCacheManager) -> None:
    manager.resize(2 * MIB)


SCENARIOS: Final = [
    Scenario("ensure", (), warm, "warming", request="active"),
    Scenario("ensure more", (warm,), lambda manager: manager.ensure(60), "warming", request="active"),
    Scenario("finalize", (warm,), decide, "ready"),
    Scenario("finalize with fewer", (warm_too_much,), decide, "ready"),
    Scenario("apply", (warm,), apply, "ready"),
    Scenario("sleep", (warm, decide, shrink), lambda manager: manager.sleep(), "asleep", True, "suspended"),
    Scenario(
        "sleep with backup",
        (warm, decide, shrink),
        lambda manager: manager.sleep(backup=True),
        "asleep",
        True,
        "suspended",
    ),
    Scenario("wake", (decide, shrink, KVCacheManager.sleep), lambda manager: manager.wake(), "ready"),
    Scenario("resize up", (decide, shrink), grow_to_more, "ready", request="active"),
    Scenario("resize down", (decide, grow_to_more), shrink, "ready", request="active"),
    Scenario("resize down, moving", (decide, grow_to_more), shrink, "ready", request="backed up"),
    Scenario("close", (warm, decide, shrink), lambda manager: manager.close(), "closed", True),
    Scenario("close asleep", (decide, KVCacheManager.sleep), lambda manager: manager.close(), "closed", True),
]


class ManagerTrial:
    """A scenario up to its operation."""

    def __init__(self, scenario: Scenario, driver: RecordingDriver) -> None:
        self.scenario = scenario
        self.driver = driver
        self.manager = with_driver(driver, vmm=True)
        for step in scenario.before:
            step(self.manager)
        self.request: CacheRequest | None = None
        if scenario.request:
            self.request = self._with_request(scenario.request)

    def _with_request(self, kind: str) -> CacheRequest:
        slots = self.manager.slots
        if self.manager.state == "warming":
            self.manager.ensure(8)
        if "moving" in self.scenario.name:
            # In front of it a request that goes, so that it has slots beyond those that will be there.
            others = [slots.allocate(512, 500) for _ in range(2)]
        request = slots.allocate(64, 40)
        for group, cycle in CYCLES.items():
            for slot in request.blocks(cycle):
                if slot >= 0:
                    mark(self.manager, group, slot, KEPT)
        if "moving" in self.scenario.name:
            for other in others:
                slots.free(other)
        if kind != "active":
            slots.suspend(request, backup=kind == "backed up")
        return request

    def attempt(self) -> DriverError | None:
        """The operation, while whatever was planned fails; its error, if it has one."""
        try:
            self.scenario.operation(self.manager)
        except DriverError as error:
            return error.with_traceback(None)
        return None

    def judge(self, error: DriverError | None, before: Seen, *, once: bool = True, refused: bool = False) -> None:
        """See what came of it.

        `once`: not more than one call failed, so that undoing was not hindered. `refused`: one did, and so what
        straddles a cut may be there still.
        """
        scenario, manager = self.scenario, self.manager
        now = Seen.of(manager)
        if error is None:
            assert now.state == scenario.after
        elif now.state != before.state:
            assert scenario.gives_back, f"{scenario.name} failed with {error!r} and is {now.state}"
            assert now.state == scenario.after
        elif once:
            assert now == before, f"{scenario.name} failed with {error!r}"
        if now.state != "closed":
            assert manager.slots.counts == manager.committed
            backing = manager._core.path.backing
            assert self.driver.allocated_bytes == backing.physical_bytes
            self.driver.check_granted()
            if now.state != "asleep" and error is None:
                loose = 3 * manager._core.settings.chunk if refused and "down" in scenario.name else 0
                assert 0 <= backing.physical_bytes - manager._core.path.pools.footprint(manager.committed) <= loose
            self._look_at_request(now.state)

    def _look_at_request(self, state: str) -> None:
        request = self.request
        if request is None or request.state is RequestState.EVICTED:
            return
        assert state != "asleep"
        for group, cycle in CYCLES.items():
            for slot in request.blocks(cycle):
                assert slot < 0 or marks(self.manager, group, slot) == {KEPT}

    def finish(self) -> None:
        """Close, and see that nothing is left."""
        manager = self.manager
        if manager.state == "asleep" and self.request is not None and self.scenario.request == "backed up":
            manager.wake()
            assert manager.slots.resume(self.request)
            self._look_at_request("ready")
        manager.close()
        self.driver.check_clean()


@dataclass(frozen=True)
class Seen:
    """What can be seen of a manager."""

    state: str
    counts: tuple[int, ...]
    committed: tuple[int, ...]
    plan_bytes: int

    @staticmethod
    def of(manager: KVCacheManager) -> Seen:
        return Seen(manager.state, manager.slots.counts, manager.committed, manager.plan.nbytes)
