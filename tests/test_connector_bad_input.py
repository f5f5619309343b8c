"""What connectors are given that cannot be, and what they do not expect: typed errors, and nothing leaked (C3, C6)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.cma import CmaConnector, JournalConnector
from tests.fine_host import FINE, FineHostDriver
from tests.helpers import peek
from vmmcache import (
    ConfigError,
    ConnectorError,
    ConnectorUnavailable,
    ExtensibleTensor,
    RegistrableSegment,
    Registration,
    RemoteMemory,
    StateError,
    TransferConnector,
    open_connector,
)
from vmmcache.connectors.cards import Card


@pytest.fixture
def tensor() -> Iterator[ExtensibleTensor]:
    with ExtensibleTensor(16 * FINE, FineHostDriver(), segments=2) as made:
        made.commit([2 * FINE, FINE])
        yield made


def real(name: str) -> TransferConnector:
    try:
        connector = open_connector(name)
    except ConnectorUnavailable as error:
        pytest.skip(error.reason)
    assert isinstance(connector, TransferConnector)
    return connector


# What is registered ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, "kv", (1, 2), {"base": 1}])
def test_what_is_no_descriptor_never_reaches_the_library(tensor: ExtensibleTensor, wrong: object) -> None:
    connector = JournalConnector()
    verbs: list[Callable[[Any], object]] = [connector.register, connector.unregister]
    for verb in verbs:
        with pytest.raises(ConfigError, match="segments"):
            verb([*tensor.registrable(), wrong])
    assert not connector.calls
    assert not connector.registered


@pytest.mark.parametrize("name", ["cma", "nixl", "mooncake"])
def test_what_is_given_twice_in_one_call(tensor: ExtensibleTensor, name: str) -> None:
    """Registering is refused before the library, which would keep two; deregistering does it once."""
    connector = JournalConnector() if name == "cma" else real(name)
    first, second = tensor.registrable()
    inside = dataclasses.replace(first, base=first.base + FINE, nbytes=FINE, logical_offset=FINE)
    for wrong in (first, first), (first, second, inside), (inside, first):
        with pytest.raises(ConfigError, match="overlap"):
            connector.register(wrong)
        assert not connector.registered
    connector.register([second, first])
    assert [each.base for each in connector.registered] == [first.base, second.base]
    connector.unregister([first, first, second, first])
    assert not connector.registered
    connector.unregister([first])
    connector.close()


@pytest.mark.parametrize("label", ["", None, 3, b"kv"])
def test_a_label_is_a_name(tensor: ExtensibleTensor, label: Any) -> None:
    with pytest.raises(ConfigError, match="label"):
        Registration(tensor, CmaConnector(), label=label)


# Code that is not ours ------------------------------------------------------------------------------------------------


class Strange(CmaConnector):
    """Raises what nobody expects, in the verb it is told to."""

    raises = ""

    def _stumble(self, verb: str) -> None:
        if verb == self.raises:
            raise KeyError(f"libstrange: no {verb}")

    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in super()._register(segments):
            if segment.segment_index:
                self._stumble("register")
            yield segment

    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in super()._unregister(segments):
            if segment.segment_index:
                self._stumble("unregister")
            yield segment

    def _quiesce(self) -> None:
        self._stumble("quiesce")

    def _invalidate_peers(self) -> None:
        self._stumble("invalidate_peers")

    def _close_handles(self, segments: Sequence[RegistrableSegment]) -> None:
        self._stumble("close_handles")


@pytest.mark.parametrize("verb", ["register", "unregister", "quiesce", "invalidate_peers", "close_handles"])
def test_whatever_a_strangers_library_raises_is_an_error_of_ours_and_can_be_tried_again(
    tensor: ExtensibleTensor, verb: str
) -> None:
    connector = Strange()
    connector.raises = verb
    if verb == "register":
        with pytest.raises(ConnectorError, match="cma: register: KeyError: 'libstrange: no register'") as caught:
            Registration(tensor, connector)
        assert isinstance(caught.value.__cause__, KeyError)
        assert (connector.registered, len(tensor._leases)) == ((), 0)
        return
    registration = Registration(tensor, connector)
    with pytest.raises(ConnectorError, match=f"{verb}: KeyError") as caught:
        registration.release()
    assert (caught.value.connector, caught.value.call) == ("cma", verb)
    assert len(tensor._leases) == 2
    connector.raises = ""
    registration.release()
    assert (connector.registered, len(tensor._leases)) == ((), 0)


@pytest.mark.parametrize("callback", ["on_quiesce", "on_invalidate"])
def test_a_callback_of_the_engine_that_raises_is_one_too(tensor: ExtensibleTensor, callback: str) -> None:
    def busy() -> None:
        raise TimeoutError("requests are running")

    connector = CmaConnector()
    registration = Registration(tensor, connector)
    setattr(connector, callback, busy)
    with pytest.raises(ConnectorError, match=f"cma: {callback}: TimeoutError: requests are running"):
        registration.release()
    assert registration.state == "registered"
    setattr(connector, callback, None)
    registration.close()


# Peers ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def peers(tensor: ExtensibleTensor) -> Iterator[tuple[CmaConnector, CmaConnector, Registration, RemoteMemory]]:
    """Two agents of one memory, the first of which knows the second."""
    ours, theirs = CmaConnector(), CmaConnector()
    with Registration(tensor, ours) as here, Registration(tensor, theirs) as there:
        yield ours, theirs, here, ours.connect(theirs.card(there))


@pytest.mark.parametrize("wrong", [None, 5, "card", b"", b"[" * 100_000, b"[]", b"\xff", b'"x"', b"{}"])
def test_bytes_that_are_no_card(wrong: Any) -> None:
    """Deep nesting ends the parser's recursion, not ours."""
    connector = CmaConnector()
    with pytest.raises(ConfigError, match="card"):
        connector.connect(wrong)
    assert connector.peers == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mem_type", "BANANA"),
        ("device_id", 1 << 64),
        ("extents", [[1 << 64, 1, 0, 0]]),
        ("partial", "no"),
        ("version", ["x", True]),
    ],
)
def test_a_card_says_nothing_that_a_library_could_not_take(
    peers: tuple[CmaConnector, CmaConnector, Registration, RemoteMemory], field: str, value: Any
) -> None:
    _, theirs, _, remote = peers
    card = Card(theirs.name, theirs.agent, theirs.version, "kv", False, b"", "DRAM", 0, tuple(remote.extents))
    fields = json.loads(card.to_bytes())
    with pytest.raises(ConfigError):
        Card.from_bytes(json.dumps(fields | {field: value}).encode())


def test_two_memories_of_one_label_are_refused_before_peers_take_one_for_the_other(tensor: ExtensibleTensor) -> None:
    """Else what was meant for the first goes into the second, and nobody notices."""
    theirs, ours = CmaConnector(), CmaConnector()
    with ExtensibleTensor(4 * FINE, FineHostDriver()) as draft:
        draft.commit(FINE)
        first, second = Registration(tensor, theirs), Registration(draft, theirs)
        remote = ours.connect(theirs.card(first))
        with pytest.raises(ConfigError, match="another label"):
            theirs.card(second)
        assert remote.address(0, 0, 1) == tensor.base_address
        theirs.card(first)
        first.close()
        assert ours.connect(theirs.card(second)).address(0, 0, 1) == draft.base_address
        second.close()


def test_a_partial_card_that_contradicts_those_before_changes_nothing(
    peers: tuple[CmaConnector, CmaConnector, Registration, RemoteMemory],
) -> None:
    ours, theirs, _, remote = peers
    before = tuple(remote.extents)
    wrong = (before[0]._replace(base=before[0].base + 1),)
    card = Card(theirs.name, theirs.agent, theirs.version, remote.label, True, b"", "DRAM", 0, wrong)
    with pytest.raises(ConfigError, match="share bytes"):
        ours.connect(card)
    assert (tuple(remote.extents), remote.lost) == (before, None)


def test_copies_that_are_none_are_the_callers_fault_and_the_peer_stays(
    peers: tuple[CmaConnector, CmaConnector, Registration, RemoteMemory], tensor: ExtensibleTensor
) -> None:
    ours, _, here, remote = peers
    local, far = here.address(0, 0, 8), remote.address(0, FINE, 8)
    for wrong in (float(local), far, 8), (local, far), (local, far, None), "abc", 5:
        copies: Any = [(local, far, 8), wrong]
        with pytest.raises(ConfigError, match=r"copies\[1\]"):
            ours.write(remote, copies)
    assert ours.peers == (remote.agent,)
    assert peek(tensor.base_address + FINE, 8) == bytes(8)


def test_only_who_connected_to_a_memory_reaches_it(
    peers: tuple[CmaConnector, CmaConnector, Registration, RemoteMemory], tensor: ExtensibleTensor
) -> None:
    """Another agent has not checked its card, and would not hear that it is void."""
    _, _, _, remote = peers
    stranger = CmaConnector()
    with Registration(tensor, stranger) as own:
        copy = own.address(0, 0, 8), remote.address(0, FINE, 8), 8
        with pytest.raises(ConfigError, match="has not connected"):
            stranger.write(remote, [copy])
        nobody: Any = remote.agent
        with pytest.raises(ConfigError, match="connect"):
            stranger.write(nobody, [copy])


def test_a_transfer_that_a_library_cannot_read_ends_and_holds_up_no_release(tensor: ExtensibleTensor) -> None:
    """Mooncake's calls wait in threads: what one raises there is the transfer's end, or no memory could ever go."""
    ours, theirs = real("mooncake"), real("mooncake")
    with Registration(tensor, ours) as here, Registration(tensor, theirs) as there:
        remote = ours.connect(theirs.card(there))
        copies: Any = [(float(here.address(0, 0, 8)), remote.address(0, FINE, 8), 8)]
        with pytest.raises((ConfigError, ConnectorError)):
            ours.write(remote, copies).wait(30)
        here.release()
        with pytest.raises(StateError):
            here.address(0, 0, 8)
    ours.close()
    theirs.close()
