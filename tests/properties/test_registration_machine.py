"""C3, C4, C5: whatever the order of growing, shrinking, registering, sleeping and failing, registered memory is there.

The model knows sizes and states only, and shares no code with what it checks: which bytes of which segment a
registration holds, and whether an operation has to be refused.
"""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cma import JournalConnector, Refused
from tests.fine_host import FINE, FineHostDriver
from vmmcache import ExtensibleTensor, LeaseError, Registration, RegistrationLease, StaleSegment, StateError

SEGMENTS = 3
ROOM = 4
"""Granules of a segment."""

shapes = st.lists(st.integers(0, ROOM), min_size=SEGMENTS, max_size=SEGMENTS)
which = st.integers(0, 1)


class Registrations(RuleBasedStateMachine):
    """One tensor, two connectors, a registration of each."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor = ExtensibleTensor(SEGMENTS * ROOM * FINE, FineHostDriver(), segments=SEGMENTS)
        self.connectors = [JournalConnector(), JournalConnector()]
        self.registrations: list[Registration | None] = [None, None]
        self.committed = [0] * SEGMENTS
        self.asleep = False
        self.ever = False
        self.held: list[list[int] | None] = [None, None]
        """Granules of each segment that a registration holds; None where it is released or there is none."""
        self.wanted: list[list[int] | None] = [None, None]
        """What a released registration would have back."""

    # The memory -----------------------------------------------------------------------------------------------------

    def holders(self, sizes: list[int]) -> set[int]:
        """Registrations that hold a granule beyond `sizes`."""
        return {
            number
            for number, held in enumerate(self.held)
            if held is not None and any(have > left for have, left in zip(held, sizes, strict=True))
        }

    def take(self, sizes: list[int], revoke: bool, operation: str) -> bool:
        """Do what may take memory away; whether it was done, as the model says it has to be."""
        expected = self.holders(sizes)
        try:
            if operation == "commit":
                self.tensor.commit([each * FINE for each in sizes], revoke=revoke)
            else:
                self.tensor.release_physical(revoke=revoke)
        except LeaseError as error:
            assert expected
            assert not revoke or isinstance(error.__cause__, Refused)
            self.resync()
            return False
        assert revoke or not expected
        for number in expected:
            self.wanted[number], self.held[number] = self.held[number], None
        return True

    @precondition(lambda self: not self.asleep)
    @rule(sizes=shapes, revoke=st.booleans())
    def commit(self, sizes: list[int], revoke: bool) -> None:
        if self.take(sizes, revoke, "commit"):
            self.committed, self.ever = sizes, True

    @precondition(lambda self: not self.asleep)
    @rule(revoke=st.booleans())
    def sleep(self, revoke: bool) -> None:
        if self.take([0] * SEGMENTS, revoke, "sleep"):
            self.asleep = True

    @precondition(lambda self: self.asleep)
    @rule()
    def wake(self) -> None:
        self.tensor.restore()
        self.asleep = False

    # Registrations --------------------------------------------------------------------------------------------------

    @initialize(sizes=shapes)
    def begin(self, sizes: list[int]) -> None:
        self.commit(sizes, False)

    @rule(number=which, at=st.integers(0, 6), persist=st.booleans())
    def fail_soon(self, number: int, at: int, persist: bool) -> None:
        self.connectors[number].arm(at, persist=persist)

    @rule(number=which)
    def fail_no_more(self, number: int) -> None:
        self.connectors[number].disarm()

    @rule(number=which)
    def register(self, number: int) -> None:
        if self.registrations[number] is not None:
            return
        try:
            self.registrations[number] = Registration(self.tensor, self.connectors[number])
        except Refused:
            if self.connectors[number].registered:
                # Nobody has it in hand. Its leases do: revoking is how it goes.
                for connector in self.connectors:
                    connector.disarm()
                assert self.take([0] * SEGMENTS, True, "sleep")
                self.asleep = True
            assert self.connectors[number].registered == ()
            return
        self.held[number] = [0] * SEGMENTS if self.asleep else list(self.committed)

    @rule(number=which)
    def refresh(self, number: int) -> None:
        registration, held = self.registrations[number], self.held[number]
        if registration is None:
            return
        state = registration.state
        try:
            fresh = registration.refresh()
        except StateError:
            assert state != "registered"
        except Refused:
            self.resync()
        else:
            assert state == "registered"
            assert held is not None
            now = [0] * SEGMENTS if self.asleep else self.committed
            assert sum(each.nbytes for each in fresh) == (sum(now) - sum(held)) * FINE
            self.held[number] = list(now)

    @rule(number=which, close=st.booleans())
    def release(self, number: int, close: bool) -> None:
        registration = self.registrations[number]
        if registration is None:
            return
        try:
            registration.close() if close else registration.release()
        except Refused:
            self.resync()
            return
        if self.held[number] is not None:
            self.wanted[number], self.held[number] = self.held[number], None
        if close:
            self.registrations[number] = self.wanted[number] = None

    @rule(number=which)
    def restore(self, number: int) -> None:
        registration, wanted = self.registrations[number], self.wanted[number]
        if registration is None:
            return
        state = registration.state
        now = [0] * SEGMENTS if self.asleep else self.committed
        try:
            registration.restore()
        except StateError:
            assert state != "released"
        except StaleSegment:
            # Smaller, or cut into allocations elsewhere: an entry does not lie in one allocation any more.
            assert state == "released"
            assert self.connectors[number].registered == ()
        except Refused:
            self.resync()
        else:
            assert wanted is not None
            assert all(want <= have for want, have in zip(wanted, now, strict=True))
            self.held[number] = wanted

    def resync(self) -> None:
        """A connector has failed: what is left is what it says; whether that is allowed, `consistent` judges."""
        for number, registration in enumerate(self.registrations):
            if registration is None:
                continue
            if registration.state == "released" and self.held[number] is not None:
                self.wanted[number], self.held[number] = self.held[number], None
            elif registration.state == "unsettled":
                # Whole segments are leased until it is settled; as far as the leases say.
                self.held[number] = [
                    max(
                        (lease.nbytes // FINE for lease in self.leases(number) if lease.segment_index == index),
                        default=0,
                    )
                    for index in range(SEGMENTS)
                ]

    def leases(self, number: int) -> list[RegistrationLease]:
        registration = self.registrations[number]
        return [] if registration is None else list(registration._leases.values())

    # What always holds ----------------------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        assert self.tensor.committed == tuple(0 if self.asleep else each * FINE for each in self.committed)
        for number, registration in enumerate(self.registrations):
            registered = self.connectors[number].registered
            for each in registered:
                # Backed by the very allocation that was registered.
                (now,) = (one for one in self.tensor.registrable() if one.base <= each.base < one.base + one.nbytes)
                assert now.allocation_id == each.allocation_id
                assert each.base + each.nbytes <= now.base + now.nbytes
            if registration is None:
                assert registered == ()
                continue
            leased = {lease.segment_index for lease in self.leases(number)}
            assert {each.segment_index for each in registered} <= leased
            if registration.state == "registered":
                assert registered == registration.parts[:]
                held = self.held[number]
                assert held is not None
                assert [
                    sum(each.nbytes for each in registered if each.segment_index == index) for index in range(SEGMENTS)
                ] == [each * FINE for each in held]
            elif registration.state == "released":
                assert (registered, leased) == ((), set())

    def teardown(self) -> None:
        for connector in self.connectors:
            connector.disarm()
        for registration in self.registrations:
            if registration is not None:
                registration.close()
        with contextlib.suppress(StateError):
            self.tensor.close(revoke=True)
        assert self.tensor.state == "closed"
        assert [connector.registered for connector in self.connectors] == [(), ()]


TestRegistrations = Registrations.TestCase
TestRegistrations.settings = settings(max_examples=100, stateful_step_count=30)
