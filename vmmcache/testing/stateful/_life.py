"""Rules: a tensor is made, grows, shrinks, is put together, sleeps, wakes, and is closed."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from vmmcache.errors import DriverError, StateError
from vmmcache.memory.states import Event
from vmmcache.testing.model import Model
from vmmcache.testing.stateful._machine import CONFIGURATION, PLAN, SIZES, Machine, allowed
from vmmcache.testing.strategies import Configuration, FaultPlan


class Life(Machine):
    """Everything that calls the driver."""

    @initialize(configuration=CONFIGURATION)
    def make(self, configuration: Configuration) -> None:
        """There is always a tensor."""
        self.alive.clear()  # of one whose addresses were lost; any other could not have been closed
        self.configuration = configuration
        self.tensor = configuration.tensor(self.driver)
        self.model = Model(configuration.segments, self.driver.granule)
        self.base = self.tensor.base_address
        self.generation = self.tensor.generation
        self.known.clear()
        self.made = True
        self.age = 0
        assert self.tensor.physical_bytes == 0

    @precondition(lambda machine: machine.age > 5)  # a tensor that is closed at once has not lived
    @rule(configuration=CONFIGURATION, revoke=st.booleans(), plan=PLAN)
    def close_and_make_another(self, configuration: Configuration, revoke: bool, plan: FaultPlan) -> None:
        """Close, from any state; then, unless that was refused, a new tensor on the same driver."""
        blockers = [] if self.alive else self.blockers(None, revoke=revoke)
        witness = self.witness()
        error = self.attempt(lambda: self.tensor.close(revoke=revoke), plan)
        if self.alive and self.model.state != "closed":
            assert isinstance(error, StateError)
            assert f"{len(self.alive)} live views" in str(error)
        elif not self.refused_by(blockers, error):
            witness.closed(_driver_error(error))
            if error is None:
                self.driver.check_clean()
                self.tensor.close()
                self.make(configuration)

    # Committing -----------------------------------------------------------------------------------------------------

    @precondition(allowed(Event.COMMIT))
    @rule(sizes=SIZES, plan=PLAN)
    def grow(self, sizes: tuple[int, ...], plan: FaultPlan) -> None:
        """Nothing gets smaller."""
        larger = tuple(map(max, sizes, self.model.committed))
        self._commit(larger, plan)

    @precondition(allowed(Event.COMMIT))
    @rule(sizes=SIZES, revoke=st.booleans(), plan=PLAN)
    def shrink(self, sizes: tuple[int, ...], revoke: bool, plan: FaultPlan) -> None:
        """Nothing gets larger."""
        smaller = tuple(map(min, sizes, self.model.committed))
        self._commit(smaller, plan, revoke=revoke)

    @precondition(allowed(Event.COMMIT))
    @rule(sizes=SIZES, revoke=st.booleans(), plan=PLAN)
    def resize(self, sizes: tuple[int, ...], revoke: bool, plan: FaultPlan) -> None:
        """Some get larger and some smaller."""
        self._commit(sizes, plan, revoke=revoke)

    @precondition(allowed(Event.COMMIT))
    @rule(sizes=SIZES | st.none(), keep=st.booleans(), revoke=st.booleans(), plan=PLAN)
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
        # Where all allocations have one size there is nothing to put together.
        exchanges = defragment and not self.driver.uniform_chunks
        blockers = self.blockers(sizes, defragment=exchanges, revoke=revoke)
        witness = self.witness()
        before = tuple(self.model.committed)
        error = self.attempt(lambda: self.tensor.commit(sizes, defragment=defragment, keep=keep, revoke=revoke), plan)
        if not self.refused_by(blockers, error):
            witness.committed(_driver_error(error), sizes, defragment=exchanges, keep=keep)
            if error is None and not exchanges and not self.faults:
                self._check_calls(before, sizes, witness.mapped)

    def _check_calls(self, before: tuple[int, ...], sizes: tuple[int, ...], mapped: list[set[int]]) -> None:
        """Growth is create, map, grant for each maximal unmapped run of a segment's granules, or its chunks (T4)."""
        backed = set().union(*mapped)
        holes = []
        for index, (old, new) in enumerate(zip(before, sizes, strict=True)):
            if new > old:
                hole = sorted(self.model.granules(index, 0, new) - backed)
                backed.update(hole)
                holes += _runs(hole)
        chunk = (self.configuration.chunk or 1 << 60) // self.driver.granule
        if self.driver.uniform_chunks:
            chunk = 1
        verbs = [call.verb for call in self.driver.journal]
        assert verbs.count("create") == verbs.count("map") == sum(-(-hole // chunk) for hole in holes)
        assert verbs.count("grant") == len(holes)
        assert verbs.count("synchronise") <= 1 or verbs.count("zero")

    # Sleeping -------------------------------------------------------------------------------------------------------

    # With nothing there to give back only now and then, or most tensors would be asleep most of their time.
    @precondition(lambda machine: any(machine.model.visible) or machine.tensor.allocations or machine.age % 8 == 0)
    @precondition(allowed(Event.SLEEP))
    @rule(backup=st.booleans(), revoke=st.booleans(), plan=PLAN)
    def sleep(self, backup: bool, revoke: bool, plan: FaultPlan) -> None:
        """All memory goes back; the second time, what was refused the first time."""
        blockers = self.blockers(None, revoke=revoke)
        witness = self.witness()
        error = self.attempt(lambda: self.tensor.release_physical(backup, revoke=revoke), plan)
        if not self.refused_by(blockers, error):
            witness.slept(_driver_error(error), backup=backup)

    @precondition(allowed(Event.WAKE))
    @rule(plan=PLAN)
    def wake(self, plan: FaultPlan) -> None:
        """The same memory at the same addresses."""
        witness = self.witness()
        witness.woke(_driver_error(self.attempt(self.tensor.restore, plan)))


def _driver_error(error: Exception | None) -> DriverError | None:
    assert error is None or isinstance(error, DriverError), error
    return error


def _runs(granules: list[int]) -> list[int]:
    """Lengths of the maximal runs of consecutive numbers."""
    lengths: list[int] = []
    for place, granule in enumerate(granules):
        if place and granules[place - 1] == granule - 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths
