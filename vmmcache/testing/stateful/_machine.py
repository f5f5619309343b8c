"""What all rules need: the driver, the tensor, the model, and a way to try something while calls are refused."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from vmmcache.connectors.leases import RegistrationLease
from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError, DriverError, LeaseError, StateError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.states import TRANSITIONS, Event, State
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.testing import checks
from vmmcache.testing.asserting import require_assertions
from vmmcache.testing.model import Model
from vmmcache.testing.recording import RecordingDriver
from vmmcache.testing.strategies import Configuration, FaultPlan, configurations, fault_plans, sizes_to_commit
from vmmcache.testing.witness import Witness

__all__ = ["CONFIGURATION", "PLAN", "SEGMENT", "SIZES", "Held", "Machine", "allowed"]

require_assertions("the stateful machine")


@dataclass
class Held:
    """A lease that the machine has taken."""

    lease: RegistrationLease
    granules: set[int]
    answer: str | None
    """What its owner does when it is asked to let go: "yes", "no", or None where it cannot be asked."""


class Machine(RuleBasedStateMachine):
    """One tensor at a time over one driver, and what is known about it."""

    faults: ClassVar[bool] = False
    """Whether calls of the driver are refused."""
    views: ClassVar[bool] = True
    """Whether torch can look at the device's memory."""
    steps: ClassVar[int] = 0
    """Rules that were executed, of all runs of the class."""
    injected: ClassVar[int] = 0
    """Calls that were refused, of all runs of the class."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Each machine counts for itself.
        cls.steps = cls.injected = 0
        cls.tidy = False

    tidy: ClassVar[bool] = False
    """Whether the run before this one ended well, and has left nothing behind."""

    tensor: ExtensibleTensor
    model: Model
    configuration: Configuration
    base: int
    generation: int

    def open_driver(self) -> VmmDriver:
        """A driver that nobody else uses."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `open_driver`")

    def peek(self, address: int, nbytes: int) -> bytes:
        """Look at memory. By the driver's own `_read`; go around the driver where you can."""
        return bytes(self.driver.inner._read(address, nbytes))

    def poke(self, address: int, data: bytes) -> None:
        """Change memory. By the driver's own `_write`; go around the driver where you can."""
        self.driver.inner._write(address, data)
        self.driver.inner._synchronise()

    def open_descriptors(self) -> int:
        """How many descriptors this process holds. Count fewer where others than the driver open and close files."""
        return len(os.listdir("/proc/self/fd"))

    def __init__(self) -> None:
        super().__init__()
        if not type(self).tidy:
            # What others have dropped goes now, and not in the middle of this run: descriptors are counted.
            gc.collect()
        type(self).tidy = False
        self.driver = RecordingDriver(self.open_driver())
        self.made = False
        self.age = 0
        """Rules since the tensor was made."""
        self.alive: list[object] = []
        """Views that are kept alive."""
        self.leases: list[Held] = []
        self.owners = 0
        """How many leases there have been: each has an owner of its own."""
        self.known: list[RegistrableSegment] = []
        """Descriptors that somebody remembers."""
        self.descriptors = self.open_descriptors()

    def step(self) -> None:
        """Count a rule."""
        type(self).steps += 1
        self.age += 1

    def witness(self) -> Witness:
        """Somebody who looks before and after an operation."""
        return Witness(self.tensor, self.driver, self.model, self.peek)

    def attempt(self, operation: Callable[[], object], plan: FaultPlan) -> Exception | None:
        """Do something while the engine is at work and calls are refused; its error, if it has one."""
        self.step()
        driver = self.driver
        driver.journal.clear()
        driver.launch(self.base, driver.order.reserved.get(self.base, 0))
        before = driver.injected
        plan.arm(driver)
        try:
            operation()
        except (ConfigError, StateError, LeaseError, DriverError) as error:
            # Without the frames that it came through: they hold what the next rules want to let go of.
            return error.with_traceback(None)
        finally:
            driver.heal()
            type(self).injected += driver.injected - before
        return None

    def blockers(self, sizes: tuple[int, ...] | None, *, defragment: bool = False, revoke: bool = False) -> list[Held]:
        """Leases that forbid a commit to `sizes`, or giving everything back (None).

        With `revoke`, after the owners who do so when they are asked have let go.
        """
        doomed: set[int] = set()
        if sizes is None:
            doomed.update(*(held.granules for held in self.leases))
        else:
            for index, (new, old) in enumerate(zip(sizes, self.model.committed, strict=True)):
                doomed |= self.model.granules(index, new, old)
            if defragment:
                mapped = checks.extents(self.tensor, self.driver)
                for run in self.model.needed(sizes):
                    if run not in mapped:
                        doomed.update(*(granules for granules in mapped if granules & run))
        blockers = [held for held in self.leases if held.granules & doomed]
        if revoke:
            for held in list(blockers):
                if held.answer == "no":
                    return [held]
                if held.answer == "yes":
                    blockers.remove(held)
                    self.leases.remove(held)
        return blockers

    def refused_by(self, blockers: list[Held], error: Exception | None) -> bool:
        """Whether leases forbid it. Then it was refused before anything was touched, in all owners' names (I9)."""
        if blockers:
            assert isinstance(error, LeaseError)
            assert error.owners == tuple(held.lease.owner for held in blockers)
            assert not self.driver.journal
        return bool(blockers)


def allowed(event: Event) -> Callable[[Any], bool]:
    """Whether the table of states has `event` in the model's state."""
    return lambda machine: event in TRANSITIONS[State(machine.model.state)]


def _of(make: Callable[[Any], st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """A strategy that depends on the machine it draws for."""
    return st.runner().flatmap(make)


CONFIGURATION = _of(lambda machine: configurations(machine.driver.granule))
SIZES = _of(lambda machine: sizes_to_commit(machine.model.sizes, machine.driver.granule))
SEGMENT = _of(lambda machine: st.integers(0, len(machine.model.sizes) - 1))
PLAN = _of(lambda machine: fault_plans() if machine.faults else st.just(FaultPlan()))
