"""A machine that does to an `ExtensibleTensor` whatever may be done, in any order, and compares it with a `Model`.

Subclass it and say how to open a driver; pytest runs ``Machine.TestCase``::

    class Machine(TensorMachine):
        def open_driver(self):
            return open_musa(0)

With `faults`, calls of the driver are refused meanwhile, also while a failed operation is being undone.

What may be done in which state is read from `vmmcache.memory.states.TRANSITIONS`; everything that is not in that table is
tried, too, and has to be refused without a call of the driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vmmcache.connectors.leases import RegistrationLease
from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError, DriverError, LeaseError, StateError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.states import TRANSITIONS, Event, State
from vmmcache.testing import checks
from vmmcache.testing.model import Model
from vmmcache.testing.recording import RecordingDriver
from vmmcache.testing.strategies import Configuration, FaultPlan, configurations, fault_plans, sizes_to_commit
from vmmcache.testing.witness import Witness

__all__ = ["TensorMachine"]


def _of(make: Callable[[Any], st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """A strategy that depends on the machine it draws for."""
    return st.runner().flatmap(make)


_CONFIGURATION = _of(lambda machine: configurations(machine.driver.granule))
_SIZES = _of(lambda machine: sizes_to_commit(machine.model.sizes, machine.driver.granule))
_SEGMENT = _of(lambda machine: st.integers(0, len(machine.model.sizes) - 1))
_PLAN = _of(lambda machine: fault_plans() if machine.faults else st.just(FaultPlan()))


def _allowed(event: Event) -> Callable[[Any], bool]:
    return lambda machine: event in TRANSITIONS[State(machine.model.state)]


@dataclass
class _Held:
    """A lease that the machine has taken."""

    lease: RegistrationLease
    granules: set[int]
    answer: str | None
    """What its owner does when it is asked to let go: "yes", "no", or None where it cannot be asked."""


class TensorMachine(RuleBasedStateMachine):
    """Rules on one tensor after the other, all over one driver."""

    faults: ClassVar[bool] = False
    """Whether calls of the driver are refused."""
    views: ClassVar[bool] = True
    """Whether torch can look at the device's memory."""
    counts_descriptors: ClassVar[bool] = True
    """Whether nobody else in this process opens or closes files meanwhile."""
    steps: ClassVar[int] = 0
    """Rules that were executed, of all runs of the class."""
    injected: ClassVar[int] = 0
    """Calls that were refused, of all runs of the class."""

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

    def __init__(self) -> None:
        super().__init__()
        self.driver = RecordingDriver(self.open_driver())
        self._descriptors = _open_descriptors()
        self._alive: list[object] = []
        self._leases: list[_Held] = []
        self._owners = 0
        self._known: list[RegistrableSegment] = []

    # A tensor's life ------------------------------------------------------------------------------------------------

    @initialize(configuration=_CONFIGURATION)
    def make(self, configuration: Configuration) -> None:
        """There is always a tensor."""
        self.configuration = configuration
        self.tensor = configuration.tensor(self.driver)
        self.model = Model(configuration.segments, self.driver.granule)
        self.base = self.tensor.base_address
        self.generation = self.tensor.generation
        self._known.clear()
        assert self.tensor.physical_bytes == 0

    @rule(configuration=_CONFIGURATION, revoke=st.booleans(), plan=_PLAN)
    def close_and_make_another(self, configuration: Configuration, revoke: bool, plan: FaultPlan) -> None:
        """Close, from any state; then, unless that was refused, a new tensor on the same driver."""
        blockers = [] if self._alive else self._blockers(None, revoke=revoke)
        witness = self._witness()
        error = self._attempt(lambda: self.tensor.close(revoke=revoke), plan)
        if self._alive:
            assert isinstance(error, StateError)
            assert f"{len(self._alive)} live views" in str(error)
        elif not self._refused_by(blockers, error):
            witness.closed(_driver_error(error))
            if error is None:
                self.driver.check_clean()
                self.tensor.close()
                self.make(configuration)

    def teardown(self) -> None:
        """At the end nothing is left (I3)."""
        if not hasattr(self, "tensor"):
            return
        self._alive.clear()
        for held in self._leases:
            held.lease.release()
        self.tensor.close()
        self.driver.check_clean()
        if self.counts_descriptors:
            assert _open_descriptors() == self._descriptors

    # Committing -----------------------------------------------------------------------------------------------------

    @precondition(_allowed(Event.COMMIT))
    @rule(sizes=_SIZES, plan=_PLAN)
    def grow(self, sizes: tuple[int, ...], plan: FaultPlan) -> None:
        """Nothing gets smaller."""
        larger = tuple(map(max, sizes, self.model.committed))
        self._commit(larger, plan)

    @precondition(_allowed(Event.COMMIT))
    @rule(sizes=_SIZES, revoke=st.booleans(), plan=_PLAN)
    def shrink(self, sizes: tuple[int, ...], revoke: bool, plan: FaultPlan) -> None:
        """Nothing gets larger."""
        smaller = tuple(map(min, sizes, self.model.committed))
        self._commit(smaller, plan, revoke=revoke)

    @precondition(_allowed(Event.COMMIT))
    @rule(sizes=_SIZES, revoke=st.booleans(), plan=_PLAN)
    def resize(self, sizes: tuple[int, ...], revoke: bool, plan: FaultPlan) -> None:
        """Some get larger and some smaller."""
        self._commit(sizes, plan, revoke=revoke)

    @precondition(_allowed(Event.COMMIT))
    @rule(sizes=_SIZES | st.none(), keep=st.booleans(), revoke=st.booleans(), plan=_PLAN)
    def defragment(self, sizes: tuple[int, ...] | None, keep: bool, revoke: bool, plan: FaultPlan) -> None:
        """One allocation for each segment, of other sizes or of the same."""
        sizes = tuple(self.model.committed) if sizes is None else sizes
        self._commit(sizes, plan, defragment=True, keep=keep, revoke=revoke)

    def _commit(
        self,
        sizes: tuple[int, ...],
        plan: FaultPlan,
        *,
        defragment: bool = False,
        keep: bool = False,
        revoke: bool = False,
    ) -> None:
        blockers = self._blockers(sizes, defragment=defragment, revoke=revoke)
        witness = self._witness()
        before = tuple(self.model.committed)
        error = self._attempt(lambda: self.tensor.commit(sizes, defragment=defragment, keep=keep, revoke=revoke), plan)
        if not self._refused_by(blockers, error):
            witness.committed(_driver_error(error), sizes, defragment=defragment, keep=keep)
            if error is None and not defragment and not self.faults:
                self._check_calls(before, sizes, witness.mapped)

    def _check_calls(self, before: tuple[int, ...], sizes: tuple[int, ...], mapped: list[set[int]]) -> None:
        """Growth is create, map and grant for each maximal unmapped run of a segment's granules, or chunks of it (T4)."""
        backed = set().union(*mapped)
        holes = []
        for index, (old, new) in enumerate(zip(before, sizes, strict=True)):
            if new > old:
                hole = sorted(self.model.granules(index, 0, new) - backed)
                backed.update(hole)
                holes += _runs(hole)
        chunk = (self.configuration.chunk or 1 << 60) // self.driver.granule
        verbs = [call.verb for call in self.driver.journal]
        assert verbs.count("create") == verbs.count("map") == sum(-(-hole // chunk) for hole in holes)
        assert verbs.count("grant") == len(holes)

    # Contents -------------------------------------------------------------------------------------------------------

    @precondition(lambda machine: any(machine.model.visible))
    @rule(choice=st.integers(0, 1 << 30), value=st.integers(1, 255), more=st.integers(1, 6))
    def write(self, choice: int, value: int, more: int) -> None:
        """Bytes of a segment, at borders and elsewhere."""
        type(self).steps += 1
        present = [index for index, nbytes in enumerate(self.model.visible) if nbytes]
        index = present[choice % len(present)]
        nbytes = self.model.visible[index]
        borders = [position for position in self.model.places(index) if position < nbytes]
        for turn in range(more):
            position = borders[(choice + 7 * turn) % len(borders)] if turn % 3 else (choice + 4099 * turn) % nbytes
            self.poke(self.base + self.model.starts[index] + position, bytes((value,)))
            self.model.write(index, position, value)

    @precondition(lambda machine: machine.views and machine.model.state != "closed")
    @rule(index=_SEGMENT, value=st.integers(1, 255), keep=st.booleans())
    def look_through_a_view(self, index: int, value: int, keep: bool) -> None:
        """A view is exactly the committed bytes (I6), and what is written through it is there."""
        type(self).steps += 1
        view = self.tensor.segment_view(index)
        assert view.untyped_storage().nbytes() == view.numel() == self.model.visible[index]
        for position, expected in list(self.model.expected(index))[-2:]:
            assert view.data_ptr() == self.base + self.model.starts[index]
            assert view[position].item() == expected
            view[position] = value
            self.model.write(index, position, value)
        whole = self.tensor.view()
        assert whole.data_ptr() == self.base
        assert whole.untyped_storage().nbytes() == sum(self.model.sizes)
        if keep:
            self._alive += [view, whole]

    @rule()
    def drop_views(self) -> None:
        """Views die."""
        type(self).steps += 1
        self._alive.clear()

    # Sleeping -------------------------------------------------------------------------------------------------------

    @precondition(_allowed(Event.SLEEP))
    @rule(backup=st.booleans(), revoke=st.booleans(), plan=_PLAN)
    def sleep(self, backup: bool, revoke: bool, plan: FaultPlan) -> None:
        """All memory goes back; the second time, what was refused the first time."""
        blockers = self._blockers(None, revoke=revoke)
        witness = self._witness()
        error = self._attempt(lambda: self.tensor.release_physical(backup, revoke=revoke), plan)
        if not self._refused_by(blockers, error):
            witness.slept(_driver_error(error), backup=backup)

    @precondition(_allowed(Event.WAKE))
    @rule(plan=_PLAN)
    def wake(self, plan: FaultPlan) -> None:
        """The same memory at the same addresses."""
        witness = self._witness()
        witness.woke(_driver_error(self._attempt(self.tensor.restore, plan)))

    # Leases ---------------------------------------------------------------------------------------------------------

    @precondition(_allowed(Event.LEASE))
    @rule(index=_SEGMENT, answer=st.sampled_from([None, "yes", "no"]))
    def lease(self, index: int, answer: str | None) -> None:
        """Somebody holds what a segment has now."""
        type(self).steps += 1
        callback = {None: None, "yes": lambda lease: lease.release(), "no": _will_not}[answer]
        self._owners += 1
        owner = f"owner {self._owners}"
        if not self.model.visible[index]:
            with pytest.raises(StateError):
                self.tensor.lease(index, owner, callback)
            return
        lease = self.tensor.lease(index, owner, callback)
        assert (lease.address, lease.nbytes) == (self.base + self.model.starts[index], self.model.visible[index])
        self._leases.append(_Held(lease, self.model.granules(index, 0, lease.nbytes), answer))

    @precondition(lambda machine: machine._leases)
    @rule(choice=st.integers(0, 99))
    def let_go(self, choice: int) -> None:
        """Somebody does not hold it any more."""
        type(self).steps += 1
        held = self._leases.pop(choice % len(self._leases))
        held.lease.release()
        held.lease.release()

    def _blockers(
        self, sizes: tuple[int, ...] | None, *, defragment: bool = False, revoke: bool = False
    ) -> list[_Held]:
        """Leases that forbid a commit to `sizes`, or giving everything back; after those who let go when asked have."""
        doomed: set[int] = set()
        if sizes is None:
            doomed.update(*(held.granules for held in self._leases))
        else:
            for index, (new, old) in enumerate(zip(sizes, self.model.committed, strict=True)):
                doomed |= self.model.granules(index, new, old)
        if sizes is not None and defragment:
            mapped = checks.extents(self.tensor, self.driver)
            for run in self.model.needed(sizes):
                if run not in mapped:
                    doomed.update(*(granules for granules in mapped if granules & run))
        blockers = [held for held in self._leases if held.granules & doomed]
        if revoke:
            for held in list(blockers):
                if held.answer == "no":
                    return [held]
                if held.answer == "yes":
                    blockers.remove(held)
                    self._leases.remove(held)
        return blockers

    def _refused_by(self, blockers: list[_Held], error: Exception | None) -> bool:
        """Whether leases forbid it. Then it was refused before anything was touched, in the names of all owners (I9)."""
        if blockers:
            assert isinstance(error, LeaseError)
            assert error.owners == tuple(held.lease.owner for held in blockers)
            assert not self.driver.journal
        return bool(blockers)

    # What is refused ------------------------------------------------------------------------------------------------

    @rule(event=st.sampled_from(Event))
    def do_what_is_not_allowed(self, event: Event) -> None:
        """StateError, and not a call of the driver."""
        if event in TRANSITIONS[State(self.model.state)]:
            return
        calls = {
            Event.COMMIT: lambda: self.tensor.commit(self.model.sizes),
            Event.LEASE: lambda: self.tensor.lease(0, "nobody"),
            Event.SLEEP: self.tensor.release_physical,
            Event.WAKE: self.tensor.restore,
        }
        error = self._attempt(calls[event], FaultPlan())
        assert isinstance(error, StateError)
        assert (error.state, error.event) == (self.model.state, event.value)
        assert not self.driver.journal

    @rule(index=_SEGMENT, wrong=st.sampled_from(["too many", "negative", "fraction", "too few sizes"]))
    def ask_for_what_there_is_not(self, index: int, wrong: str) -> None:
        """ConfigError, and not a call of the driver."""
        sizes: list[Any] = list(self.model.sizes)
        if wrong == "too few sizes":
            del sizes[index]
        else:
            sizes[index] = {"too many": sizes[index] + 1, "negative": -1, "fraction": 0.5}[wrong]
        error = self._attempt(lambda: self.tensor.commit(sizes, defragment=True), FaultPlan())
        assert isinstance(error, ConfigError)
        assert not self.driver.journal

    # ----------------------------------------------------------------------------------------------------------------

    @rule()
    def describe(self) -> None:
        """Somebody remembers what the tensor is made of."""
        type(self).steps += 1
        if self.model.state != "closed":
            self._known = list(self.tensor.registrable())

    @invariant()
    def all_is_well(self) -> None:
        """After every rule."""
        if not hasattr(self, "tensor"):
            return
        tensor, driver = self.tensor, self.driver
        assert tensor.base_address == self.base
        assert tensor.generation >= self.generation
        self.generation = tensor.generation
        checks.check_shape(tensor, self.model)
        checks.check_books(tensor, driver)
        checks.check_backing(tensor, driver, self.model)
        checks.check_contents(tensor, self.model, self.peek)
        if self.model.state != "closed":
            checks.check_descriptors(tensor, self._known)
        if not self.faults:
            driver.check_granted()
            assert driver.mapped_bytes == tensor.physical_bytes
            assert len(driver.order.reserved) == 1
        assert all(held.lease.valid for held in self._leases)
        if self.counts_descriptors:
            held_open = len(tensor.allocations) * driver.fds_per_allocation
            assert _open_descriptors() == self._descriptors + held_open

    def _attempt(self, operation: Callable[[], object], plan: FaultPlan) -> Exception | None:
        """Do something while the engine is at work and calls are refused; its error, if it has one."""
        type(self).steps += 1
        driver = self.driver
        driver.journal.clear()
        driver.launch(self.base, driver.order.reserved.get(self.base, 0))
        with self._armed(plan):
            try:
                operation()
            except (ConfigError, StateError, LeaseError, DriverError) as error:
                # Without the frames that it came through: they hold what the next rules want to let go of.
                return error.with_traceback(None)
        return None

    def _witness(self) -> Witness:
        return Witness(self.tensor, self.driver, self.model, self.peek)

    @contextmanager
    def _armed(self, plan: FaultPlan) -> Iterator[None]:
        before = self.driver.injected
        plan.arm(self.driver)
        try:
            yield
        finally:
            self.driver.heal()
            type(self).injected += self.driver.injected - before


def _runs(granules: list[int]) -> list[int]:
    """Lengths of the maximal runs of consecutive numbers."""
    lengths: list[int] = []
    for place, granule in enumerate(granules):
        if place and granules[place - 1] == granule - 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def _driver_error(error: Exception | None) -> DriverError | None:
    assert error is None or isinstance(error, DriverError)
    return error


def _will_not(lease: RegistrationLease) -> None:
    raise RuntimeError(f"{lease.owner} needs it")


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
