"""A stateful machine over a manager and its slots: random lives, while calls of the driver fail, against a model.

The model knows what each request was promised, by a formula of its own, and which byte its owner has written into all
of its slots. It looks at memory past every class of vmmcache, and shares no code with what it judges. The host's
machine and those on emulated libraries differ in where the driver comes from and how calls are made to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cache.managed import CYCLES, LAYOUT, mark, marks, with_driver
from vmmcache import ConfigError, DriverError, KVCacheManager, PlanError, StateError, VmmDriver
from vmmcache.cache.requests import CacheRequest, RequestState
from vmmcache.testing import RecordingDriver
from vmmcache.units import MIB

BLOCK = LAYOUT.tokens_per_block
WINDOW = 32
"""Of the layout's second life cycle."""

QUOTAS = st.integers(1, 40).map(lambda quarters: quarters * MIB // 4)
PLAN = st.none() | st.integers(1, 60)
"""No fault, or which call fails. Not more: where undoing is refused as well, other tests look at what is left."""


@dataclass
class Known:
    """What the model knows of a request."""

    request: CacheRequest
    value: int
    capacity: int
    history: int
    backup: bool = False
    written: dict[tuple[int, int], int] = field(default_factory=dict)
    """Slot of each block that its owner has written, by life cycle and block."""
    active: bool = True


class ManagerMachine(RuleBasedStateMachine):
    """One manager at a time."""

    steps: ClassVar[int] = 0
    injected: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.steps = cls.injected = 0

    def open_driver(self) -> VmmDriver:
        """A driver of 10 MiB or so, with a granule of 64 KiB."""
        raise NotImplementedError

    def failing(self, plan: int | None, operation: Callable[[], object]) -> tuple[object, Exception | None]:
        """Do it while calls fail: what it returned, and its error."""
        type(self).steps += 1
        before = self.driver.injected
        if plan is not None:
            self.driver.fail(plan)
        try:
            return operation(), None
        except (ConfigError, StateError, PlanError, DriverError) as error:
            return None, error.with_traceback(None)
        finally:
            self.driver.heal()
            type(self).injected += self.driver.injected - before
            self.refused = self.driver.injected > before

    @initialize()
    def make(self) -> None:
        """There is always a manager."""
        self.driver = RecordingDriver(self.open_driver())
        self.known: list[Known] = []
        self.number = 0
        self.refused = False
        self.state = "warming"
        self.manager: KVCacheManager = with_driver(self.driver, vmm=True)

    @precondition(lambda self: self.number > 8)
    @rule(plan=PLAN)
    def close_and_make_another(self, plan: int | None) -> None:
        _, error = self.failing(plan, self.manager.close)
        if error is not None:
            assert isinstance(error, DriverError)
            assert self.refused
            self.manager.close()
        for known in self.known:
            assert known.request.state is RequestState.FREED
        self.driver.check_clean()
        self.make()

    # The manager ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.state == "warming")
    @rule(slots=st.integers(0, 400), plan=PLAN)
    def ensure(self, slots: int, plan: int | None) -> None:
        before = self.manager.committed
        _, error = self.failing(plan, lambda: self.manager.ensure(slots))
        if error is None:
            assert all(now >= then for now, then in zip(self.manager.committed, before, strict=True))
        else:
            assert self.manager.committed == before
            assert isinstance(error, ConfigError) == (slots > min(self.manager.capacity))
            assert isinstance(error, ConfigError) or self.refused

    @precondition(lambda self: self.state == "warming")
    @rule(plan=PLAN, peak=st.integers(0, 2 * MIB))
    def finalize(self, plan: int | None, peak: int) -> None:
        self.manager._core.shared.saw_peak(peak)
        _, error = self.failing(plan, self.manager.finalize)
        if self.known:
            assert isinstance(error, StateError)
            assert error.event == "finalize"
        elif error is None:
            self.state = "ready"
        else:
            assert isinstance(error, (DriverError, PlanError))
            assert self.refused or isinstance(error, PlanError)

    @precondition(lambda self: self.state == "ready")
    @rule(quota=QUOTAS, plan=PLAN)
    def resize(self, quota: int, plan: int | None) -> None:
        before = self.manager.committed, self.manager.plan
        _, error = self.failing(plan, lambda: self.manager.resize(quota))
        if error is None:
            assert self.manager.plan.nbytes <= quota
        else:
            assert self.manager.plan == before[1]
            assert self.manager.committed == before[0], repr(error)
            if isinstance(error, PlanError):
                assert quota < self.manager.plan.min_nbytes + 64 * 1024
            elif isinstance(error, StateError):
                assert any(known.active for known in self.known)
            else:
                assert isinstance(error, (ConfigError, DriverError))

    @precondition(lambda self: self.state == "ready")
    @rule(backup=st.booleans(), revoke=st.booleans(), plan=PLAN)
    def sleep(self, backup: bool, revoke: bool, plan: int | None) -> None:
        _, error = self.failing(plan, lambda: self.manager.sleep(backup=backup, revoke=revoke))
        active = [known for known in self.known if known.active]
        if active and not revoke:
            assert isinstance(error, StateError)
            assert f"{len(active)} requests" in str(error)
            return
        for known in active:
            known.active = False
            known.backup = False
        assert error is None or self.refused
        if self.manager.state == "asleep":
            self.state = "asleep"
            for known in self.known:
                known.backup |= backup
        elif backup and any(known.request.state is RequestState.EVICTED for known in self.known):
            # Copied before it failed: nothing is lost.
            for known in self.known:
                known.backup |= known.request.state is RequestState.EVICTED and not known.request.lost

    @precondition(lambda self: self.state == "asleep")
    @rule(plan=PLAN)
    def wake(self, plan: int | None) -> None:
        _, error = self.failing(plan, self.manager.wake)
        if error is None:
            self.state = "ready"
        else:
            assert self.refused

    # Requests -------------------------------------------------------------------------------------------------------

    @rule(capacity=st.integers(1, 200), computed=st.integers(0, 200))
    def allocate(self, capacity: int, computed: int) -> None:
        history = min(capacity, computed)
        fits = self.manager.slots.fits(capacity, history)
        request, error = self.failing(None, lambda: self.manager.slots.allocate(capacity, history))
        assert (error is None) == fits
        if error is None:
            assert isinstance(request, CacheRequest)
            self.number += 1
            self.known.append(Known(request, 1 + self.number % 250, capacity, history))
            self._write(self.known[-1])

    @precondition(lambda self: self.known)
    @rule(data=st.data(), more=st.integers(0, 64), computed=st.integers(0, 64))
    def grow(self, data: st.DataObject, more: int, computed: int) -> None:
        known = data.draw(st.sampled_from(self.known))
        capacity = known.capacity + more
        history = min(capacity, known.history + computed)
        _, error = self.failing(None, lambda: self.manager.slots.grow(known.request, capacity, history))
        if error is None:
            assert known.active
            known.capacity, known.history = capacity, history
            self._write(known)
        else:
            assert isinstance(error, StateError if not known.active else PlanError)

    @precondition(lambda self: any(known.active for known in self.known))
    @rule(data=st.data(), backup=st.booleans())
    def suspend(self, data: st.DataObject, backup: bool) -> None:
        known = data.draw(st.sampled_from([each for each in self.known if each.active]))
        self.manager.slots.suspend(known.request, backup)
        known.active, known.backup = False, backup
        type(self).steps += 1

    @precondition(lambda self: any(not known.active for known in self.known))
    @rule(data=st.data(), plan=PLAN)
    def resume(self, data: st.DataObject, plan: int | None) -> None:
        known = data.draw(st.sampled_from([each for each in self.known if not each.active]))
        before = known.request.state
        resumed, error = self.failing(plan, lambda: self.manager.slots.resume(known.request))
        if error is not None:
            assert self.refused
            assert known.request.state is not RequestState.ACTIVE
        elif resumed:
            assert self.state != "asleep"
            known.active = True
            if before is RequestState.EVICTED and not known.backup:
                assert known.request.lost
            if known.request.lost:
                self._write(known)
            else:
                self._check(known)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.known))
        self.manager.slots.free(known.request)
        self.known.remove(known)
        _, error = self.failing(None, lambda: self.manager.slots.free(known.request))
        assert isinstance(error, StateError), "freed twice"

    # What is always so ----------------------------------------------------------------------------------------------

    @invariant()
    def nobody_has_anothers_slots_or_lost_what_it_wrote(self) -> None:
        taken: dict[tuple[int, int], int] = {}
        for known in self.known:
            if known.request.state is RequestState.EVICTED:
                assert not known.active
                continue
            assert self.state != "asleep"
            self._check(known)
            for group, cycle in CYCLES.items():
                for slot in known.request.blocks(cycle):
                    if slot >= 0:
                        assert taken.setdefault((group, slot), known.value) == known.value
                        assert slot < self.manager.committed[group]

    @invariant()
    def the_books_agree(self) -> None:
        manager = self.manager
        assert manager.state == self.state
        assert manager.slots.counts == manager.committed
        assert self.driver.allocated_bytes == manager._core.path.backing.physical_bytes
        assert manager.committed != (0, 0) or self.state == "asleep"

    def teardown(self) -> None:
        """Close, from wherever it is."""
        if hasattr(self, "manager"):
            self.manager.close()
            self.driver.check_clean()

    # ----------------------------------------------------------------------------------------------------------------

    def _blocks(self, known: Known, cycle: int) -> set[int]:
        """Blocks that a request has: what no later token can see has gone."""
        end = -(-known.capacity // BLOCK)
        first = 0 if cycle == 0 else max(0, (known.history + 1 - WINDOW) // BLOCK)
        return set(range(min(first, end), end))

    def _write(self, known: Known) -> None:
        """As its owner, fill all slots of a request."""
        for group, cycle in CYCLES.items():
            for slot in known.request.blocks(cycle):
                if slot >= 0:
                    mark(self.manager, group, slot, known.value)

    def _check(self, known: Known) -> None:
        for group, cycle in CYCLES.items():
            slots = known.request.blocks(cycle)
            assert {block for block, slot in enumerate(slots) if slot >= 0} == self._blocks(known, cycle)
            for slot in slots:
                assert slot < 0 or known.request.lost or marks(self.manager, group, slot) == {known.value}
