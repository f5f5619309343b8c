"""C3, C4, C5: leases and registrations of one memory, in the order that is safe, also where something fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from tests.cma import CmaConnector, JournalConnector, Refused
from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S, peek, poke, status_of_child
from vmmcache import (
    AlignmentError,
    ConfigError,
    ConnectorNeeds,
    ExtensibleTensor,
    LeaseError,
    RegistrableSegment,
    Registration,
    StaleSegment,
    StateError,
)

RELEASE = ["stop requests", "quiesce", "quiesce", "tell peers"]
"""What a release does before the library hears of it; what comes after depends on what is registered."""


@pytest.fixture
def tensor() -> ExtensibleTensor:
    tensor = ExtensibleTensor(24 * FINE, FineHostDriver(), segments=3)
    tensor.commit([2 * FINE, 0, FINE])
    return tensor


@pytest.fixture
def connector() -> JournalConnector:
    return JournalConnector()


def places(registration: Registration) -> list[tuple[int, int, int]]:
    return [(each.segment_index, each.logical_offset, each.nbytes // FINE) for each in registration.parts]


def assert_consistent(tensor: ExtensibleTensor, registration: Registration) -> None:
    """What the library has registered is there, is leased, and is all of the registration's or none."""
    registered = registration.connector.registered
    if registration.state == "registered":
        assert registered == registration.parts[:]
    elif registration.state in ("released", "closed"):
        assert registered == ()
    for each in registered:
        tensor.check(each)
    leased = {each.segment_index for each in tensor._leases._leases.values()}
    assert leased == {each.segment_index for each in registered} or registration.state == "unsettled"
    assert leased >= {each.segment_index for each in registered}


# The life of a registration -------------------------------------------------------------------------------------------


def test_all_that_is_committed_is_leased_and_registered(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    registration = Registration(tensor, connector)
    assert connector.names() == ["register 0", "register 2"]
    assert registration.parts[:] == connector.registered == tensor.registrable()
    assert "2 parts on host with cma, registered" in repr(registration)
    assert_consistent(tensor, registration)
    for refused in (partial(tensor.commit, [FINE, 0, FINE]), tensor.release_physical, tensor.close):
        with pytest.raises(LeaseError) as caught:
            refused()
        assert caught.value.owners == ("cma",)
    assert connector.names() == []
    registration.close()
    tensor.close()


def test_a_release_comes_in_the_order_that_is_safe(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    """C5: quiesce, invalidate peers, deregister, close descriptors, and only then may the memory go."""
    held: list[int] = []
    registration = Registration(tensor, connector)
    connector.names()
    connector.on_invalidate = lambda: held.append(len(tensor._leases))
    registration.release()
    assert connector.names() == ["stop requests", "quiesce", "quiesce", "unregister 0", "unregister 2", "close handles"]
    assert (held, len(tensor._leases), connector.epoch) == ([2], 0, 1)
    registration.release()
    assert (connector.names(), connector.epoch) == ([], 1)
    tensor.release_physical()
    tensor.restore()
    registration.restore()
    assert connector.names() == ["register 0", "register 2"]
    assert_consistent(tensor, registration)
    registration.close()
    registration.close()
    assert registration.state == "closed"
    tensor.close()


def test_revoking_is_a_release(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    """C3: the callback runs while the memory is there; one call for all leases."""
    registration = Registration(tensor, connector)
    poke(tensor.base_address, b"here")
    seen: list[bytes] = []
    connector.on_invalidate = lambda: seen.append(peek(tensor.base_address, 4))
    tensor.release_physical(revoke=True)
    assert (seen, registration.state, tensor.state) == ([b"here"], "released", "asleep")
    tensor.restore()
    registration.restore()
    tensor.commit([FINE, 0, FINE], revoke=True)
    assert registration.state == "released"
    # It cannot be what it was; another one can.
    with pytest.raises(StaleSegment, match="of segment 0"):
        registration.restore()
    assert_consistent(tensor, registration)
    registration.close()
    with Registration(tensor, connector) as again:
        assert places(again) == [(0, 0, 1), (2, 0, 1)]
    tensor.close()


def test_growth_is_appended_while_everything_else_stays(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    registration = Registration(tensor, connector)
    before = registration.parts[:]
    assert registration.refresh() == ()
    tensor.commit([3 * FINE, FINE, FINE])
    connector.names()
    fresh = registration.refresh()
    assert connector.names() == ["register 0", "register 1"]
    assert [(each.segment_index, each.logical_offset) for each in fresh] == [(0, 2 * FINE), (1, 0)]
    assert set(before) < set(registration.parts)
    assert_consistent(tensor, registration)
    # The new bytes are held too, and one lease a segment is enough.
    assert len(tensor._leases) == 3
    with pytest.raises(LeaseError):
        tensor.commit([2 * FINE, FINE, FINE])
    registration.close()
    tensor.close()


def test_growth_inside_an_allocation_is_an_entry_of_its_own(connector: JournalConnector) -> None:
    """What is registered never changes its length: peers know it."""
    tensor = ExtensibleTensor(8 * FINE, FineHostDriver())
    tensor.commit(FINE // 2)
    registration = Registration(tensor, connector)
    tensor.commit(FINE)
    (fresh,) = registration.refresh()
    assert (fresh.logical_offset, fresh.nbytes) == (FINE // 2, FINE // 2)
    assert registration.address(0, FINE // 2, FINE // 2) == tensor.base_address + FINE // 2
    with pytest.raises(AlignmentError, match="two registrations"):
        registration.address(0, 0, FINE)
    tensor.release_physical(revoke=True)
    tensor.restore()
    registration.restore()
    assert [each.nbytes for each in registration.parts] == [FINE // 2, FINE // 2]
    registration.close()
    tensor.close()


def test_memory_with_nothing_committed_is_registered_when_it_grows(connector: JournalConnector) -> None:
    tensor = ExtensibleTensor(8 * FINE, FineHostDriver())
    registration = Registration(tensor, connector)
    assert registration.parts[:] == ()
    tensor.commit(FINE)
    assert len(registration.refresh()) == 1
    registration.close()
    tensor.close()


def test_addresses_are_given_only_of_what_is_registered(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    registration = Registration(tensor, connector)
    assert registration.address(2, 5, 10) == tensor.base_address + tensor.segment_offsets[2] + 5
    for segment, offset, nbytes in (
        (0, 2 * FINE, 1),
        (0, 2 * FINE - 1, 2),
        (1, 0, 1),
        (7, 0, 1),
        (0, -1, 1),
        (0, 0, 0),
    ):
        with pytest.raises(ConfigError, match="registered"):
            registration.address(segment, offset, nbytes)
    registration.release()
    with pytest.raises(StateError, match=r"released.*address\(\); restore"):
        registration.address(2, 5, 10)
    registration.close()
    tensor.close()


@pytest.mark.parametrize(
    ("before", "event", "call"),
    [
        ("released", "refresh", Registration.refresh),
        ("closed", "refresh", Registration.refresh),
        ("registered", "restore", Registration.restore),
        ("closed", "restore", Registration.restore),
    ],
)
def test_the_wrong_order_is_said_to_be_wrong(
    tensor: ExtensibleTensor,
    connector: JournalConnector,
    before: str,
    event: str,
    call: Callable[[Registration], object],
) -> None:
    registration = Registration(tensor, connector)
    if before != "registered":
        registration.release()
    if before == "closed":
        registration.close()
    connector.names()
    with pytest.raises(StateError) as caught:
        call(registration)
    assert (caught.value.state, caught.value.event) == (before, event)
    assert connector.names() == []
    registration.close()
    tensor.close()


def test_waking_the_registration_before_the_memory_is_refused(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    registration = Registration(tensor, connector)
    tensor.release_physical(revoke=True)
    connector.names()
    with pytest.raises(StaleSegment):
        registration.restore()
    assert (registration.state, connector.names()) == ("released", [])
    tensor.restore()
    registration.restore()
    registration.close()
    tensor.close()


# Several --------------------------------------------------------------------------------------------------------------


def test_two_connectors_on_one_memory_each_hold_it(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    other = JournalConnector()
    one, two = Registration(tensor, connector), Registration(tensor, other)
    with pytest.raises(LeaseError, match="4 leases"):
        tensor.release_physical()
    one.release()
    with pytest.raises(LeaseError, match="2 leases"):
        tensor.release_physical()
    one.restore()
    tensor.release_physical(revoke=True)
    assert (one.state, two.state) == ("released", "released")
    tensor.restore()
    two.restore()
    one.close()
    two.close()
    tensor.close()


def test_where_one_of_two_refuses_the_other_has_let_go_and_can_come_back(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    other = JournalConnector()
    one, two = Registration(tensor, connector), Registration(tensor, other)
    other.arm(0)
    with pytest.raises(LeaseError):
        tensor.release_physical(revoke=True)
    assert (tensor.state, one.state, two.state) == ("committed", "released", "registered")
    one.restore()
    for registration in (one, two):
        assert registration.connector.registered == registration.parts[:]
    other.disarm()
    tensor.close(revoke=True)


def test_two_memories_of_one_connector_are_released_apart(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    draft = ExtensibleTensor(8 * FINE, FineHostDriver())
    draft.commit(FINE)
    target, small = Registration(tensor, connector), Registration(draft, connector, label="draft")
    assert len(connector.registered) == 3
    draft.release_physical(revoke=True)
    assert (target.state, small.state, len(connector.registered)) == ("registered", "released", 2)
    with pytest.raises(StateError, match="close the Registrations"):
        connector.close()
    target.close()
    small.close()
    connector.close()
    connector.close()
    with pytest.raises(StateError, match="open another"):
        Registration(tensor, connector)
    tensor.close()
    draft.close()


def test_the_same_memory_twice_is_an_overlap_that_the_library_never_sees(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    """Mooncake would answer -7, NIXL nothing, and each with two leases for one registration afterwards."""
    registration = Registration(tensor, connector)
    connector.names()
    with pytest.raises(ConfigError, match=r"registered 131072 bytes at \w+ already"):
        Registration(tensor, connector)
    assert connector.names() == []
    assert_consistent(tensor, registration)
    registration.close()
    tensor.close()


def test_unregistering_twice_does_nothing_the_second_time(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    registration = Registration(tensor, connector)
    parts = registration.parts
    connector.names()
    connector.unregister(parts)
    connector.unregister(parts)
    assert connector.names() == ["unregister 0", "unregister 2"]
    registration.release()
    assert len(tensor._leases) == 0
    tensor.close()


# What is refused before the library is called -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "error"),
    [
        (ConnectorNeeds(on_granules=True), AlignmentError),
        (ConnectorNeeds(alignment=FINE), AlignmentError),
        (ConnectorNeeds(single_storage=True), AlignmentError),
        (ConnectorNeeds(memory=frozenset({"VRAM"})), ConfigError),
        (ConnectorNeeds(exact_blocks=True), ConfigError),
    ],
    ids=str,
)
def test_memory_that_a_connector_cannot_have_is_not_leased_and_not_registered(
    connector: JournalConnector, needs: ConnectorNeeds, error: type[Exception]
) -> None:
    connector.needs = needs
    with ExtensibleTensor(8 * FINE, FineHostDriver(), segments=2) as tensor:
        tensor.commit(FINE + 5)
        with pytest.raises(error, match="cma"):
            Registration(tensor, connector)
        assert (connector.names(), len(tensor._leases)) == ([], 0)


def test_rules_of_all_memory_count_what_another_registration_holds(connector: JournalConnector) -> None:
    connector.needs = ConnectorNeeds(single_storage=True)
    one, other = (ExtensibleTensor(8 * FINE, FineHostDriver()) for _ in range(2))
    for tensor in (one, other):
        tensor.commit(FINE)
    with Registration(one, connector), pytest.raises(AlignmentError, match="2 allocations"):
        Registration(other, connector)
    Registration(other, connector).close()
    one.close()
    other.close()


def test_a_connector_that_needs_whole_segments_does_not_follow_growth(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    """C2."""
    connector.needs = ConnectorNeeds(whole_segments=True)
    registration = Registration(tensor, connector)
    tensor.commit([3 * FINE, FINE, FINE])
    connector.names()
    with pytest.raises(AlignmentError, match=r"whole_segments.*register anew after growth"):
        registration.refresh()
    assert connector.names() == []
    assert_consistent(tensor, registration)
    registration.close()
    tensor.commit(tensor.committed, defragment=True, keep=True)
    with Registration(tensor, connector) as anew:
        assert [each.whole for each in anew.parts] == [True] * 3
    tensor.close()


def test_strides_are_kept_for_growth(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    registration = Registration(tensor, connector, strides=FINE)
    tensor.commit([2 * FINE, FINE // 2, FINE])
    with pytest.raises(AlignmentError, match="a block of 65536 bytes in segment 1"):
        registration.refresh()
    assert_consistent(tensor, registration)
    registration.close()
    tensor.close()


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_a_layout_whose_blocks_are_whole_can_be_registered(
    tensor: ExtensibleTensor, connector: JournalConnector, layout: str
) -> None:
    """C1."""
    with Registration(tensor, connector, layout=layout) as registration:
        assert registration.parts
    tensor.close()


@pytest.mark.parametrize(
    ("layout", "why"), [("LHBNC", "in several pieces"), ("BHLNC", "in several pieces"), ("NHD", "no such layout")]
)
def test_any_other_layout_is_refused_with_those_that_can_be(
    tensor: ExtensibleTensor, connector: JournalConnector, layout: str, why: str
) -> None:
    """C1."""
    with pytest.raises(ConfigError, match=rf"{why}.*registered: LBHNC, LBNHC, BLHNC, BLNHC"):
        Registration(tensor, connector, layout=layout)
    assert not connector.registered
    tensor.close()


@pytest.mark.parametrize(("memory", "other"), [(False, True), (True, False)])
def test_what_is_no_memory_or_no_connector_is_refused(
    tensor: ExtensibleTensor, connector: JournalConnector, memory: bool, other: bool
) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Registration(tensor if memory else object(), connector if other else "nixl")  # type: ignore[arg-type]
    tensor.close()


# What fails -----------------------------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[ExtensibleTensor, Registration], object]] = {
    "refresh": lambda tensor, registration: registration.refresh(),
    "release": lambda tensor, registration: registration.release(),
    "revoke": lambda tensor, registration: tensor.release_physical(revoke=True),
    "restore": lambda tensor, registration: registration.restore(),
    "close": lambda tensor, registration: registration.close(),
}


WHERE: dict[str, list[str]] = {
    "refresh": ["register 0", "register 1"],
    "restore": ["register 0", "register 0", "register 1", "register 2"],
}
"""The calls of each verb, for a memory whose segments 0 and 1 have grown. All others are a release:"""
IN_A_RELEASE = [*RELEASE, "unregister 0", "unregister 0", "unregister 1", "unregister 2", "close handles"]


@pytest.mark.parametrize(
    ("verb", "at", "call"),
    [(verb, at, call) for verb in VERBS for at, call in enumerate(WHERE.get(verb, IN_A_RELEASE))],
)
def test_after_any_failure_the_state_is_known_and_the_same_call_goes_on(
    tensor: ExtensibleTensor, connector: JournalConnector, verb: str, at: int, call: str
) -> None:
    registration = Registration(tensor, connector)
    tensor.commit([3 * FINE, 2 * FINE, FINE])
    if verb != "refresh":
        registration.refresh()
    if verb == "restore":
        registration.release()
    before = registration.state, connector.registered
    connector.arm(at)
    with pytest.raises(LeaseError if verb == "revoke" else Refused, match=call) as caught:
        VERBS[verb](tensor, registration)
    assert verb != "revoke" or isinstance(caught.value.__cause__, Refused)
    assert tensor.state == "committed"
    assert_consistent(tensor, registration)
    if call.startswith("register") or call in RELEASE or at == len(RELEASE):
        assert (registration.state, connector.registered) == before
    else:
        assert registration.state == "unsettled"
    connector.disarm()
    VERBS[verb](tensor, registration)
    assert connector.names()[-1] == WHERE.get(verb, IN_A_RELEASE)[-1]
    assert_consistent(tensor, registration)
    registration.close()
    tensor.close()


def test_a_registration_that_fails_leaves_nothing(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    for at in range(2):
        connector.arm(at)
        with pytest.raises(Refused):
            Registration(tensor, connector)
        assert (connector.registered, len(tensor._leases)) == ((), 0)
    connector.disarm()
    Registration(tensor, connector).close()
    tensor.close()


def test_what_cannot_be_undone_stays_leased_and_revoking_tries_again(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    """The second registration fails, and so does taking the first back."""
    connector.arm(1, persist=True)
    with pytest.raises(Refused, match="register 2") as caught:
        Registration(tensor, connector)
    (note,) = caught.value.__notes__
    assert "undoing failed too: Refused" in note
    assert [each.segment_index for each in connector.registered] == [0]
    assert len(tensor._leases) == 1
    with pytest.raises(LeaseError):
        tensor.close(revoke=True)
    connector.disarm()
    tensor.close(revoke=True)
    assert connector.registered == ()


def test_a_growth_that_cannot_be_undone_is_unsettled_until_it_is_released(
    tensor: ExtensibleTensor, connector: JournalConnector
) -> None:
    registration = Registration(tensor, connector)
    tensor.commit([3 * FINE, FINE, FINE])
    connector.arm(1, persist=True)
    with pytest.raises(Refused):
        registration.refresh()
    assert (registration.state, len(connector.registered)) == ("unsettled", 3)
    connector.disarm()
    for call in (registration.refresh, registration.restore):
        with pytest.raises(StateError, match="unsettled"):
            call()
    with pytest.raises(LeaseError):
        tensor.commit([2 * FINE, FINE, FINE])
    registration.release()
    assert (registration.state, connector.registered, len(tensor._leases)) == ("released", (), 0)
    registration.close()
    tensor.close()


def test_a_connector_that_does_not_tell_is_found_out(tensor: ExtensibleTensor) -> None:
    class Silent(CmaConnector):
        def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
            yield from segments[:-1]

    connector = Silent()
    with pytest.raises(Exception, match=r"_register told of 1 entries of 2"):
        Registration(tensor, connector)
    assert (connector.registered, len(tensor._leases)) == ((), 0)
    tensor.close()


def test_the_engines_callback_may_refuse(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    registration = Registration(tensor, connector)

    def busy() -> None:
        raise TimeoutError("requests are running")

    connector.on_quiesce = busy
    with pytest.raises(LeaseError, match=r"cma did not let go of segment 0: .*TimeoutError: requests are running"):
        tensor.release_physical(revoke=True)
    assert_consistent(tensor, registration)
    assert (tensor.state, registration.state, connector.epoch) == ("committed", "registered", 0)
    connector.on_quiesce = None
    tensor.close(revoke=True)


# Threads and processes ------------------------------------------------------------------------------------------------


def test_the_memory_grows_and_is_revoked_while_others_refresh() -> None:
    """Whoever comes first, nothing is registered that is not there, and nobody waits for ever."""
    tensor = ExtensibleTensor(64 * FINE, FineHostDriver())
    tensor.commit(FINE)
    connector = CmaConnector()
    registration = Registration(tensor, connector)
    errors: list[BaseException] = []

    def grow() -> None:
        for granules in range(2, 40):
            tensor.commit(granules * FINE)

    def refresh() -> None:
        for _ in range(40):
            try:
                registration.refresh()
            except StateError as error:
                errors.append(error)

    workers = [threading.Thread(target=work) for work in (grow, refresh, refresh)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
    assert not any(worker.is_alive() for worker in workers)
    assert errors == []
    registration.refresh()
    assert registration.parts.nbytes == 39 * FINE
    tensor.close(revoke=True)


def test_a_forked_child_touches_nothing(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    registration = Registration(tensor, connector)
    connector.names()

    def child() -> None:
        try:
            registration.release()
        except StateError as error:
            os._exit(7 if "fork" in str(error) and connector.names() == [] else 8)

    assert status_of_child(child) == 7
    assert_consistent(tensor, registration)
    registration.close()
    tensor.close()


def test_an_error_in_the_block_is_the_one_that_is_seen(tensor: ExtensibleTensor, connector: JournalConnector) -> None:
    with pytest.raises(KeyError) as caught, Registration(tensor, connector):  # noqa: PT012 -- the block is the point
        connector.arm(0)
        raise KeyError
    assert "not closed" in caught.value.__notes__[0]
    connector.disarm()
    tensor.close(revoke=True)
    with pytest.raises(KeyError), connector:
        raise KeyError
