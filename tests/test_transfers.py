"""C6: cards, peers and transfers, between two connectors of this process. test_connectors_live.py has two processes."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cma import CmaConnector
from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S, peek, poke
from vmmcache import (
    AlignmentError,
    Card,
    ConfigError,
    ConnectorError,
    ExtensibleTensor,
    Registration,
    RemoteMemory,
    StaleSegment,
    StateError,
    Transfer,
)
from vmmcache.connectors.cards import Version
from vmmcache.connectors.extents import Extent
from vmmcache.connectors.transfer import Copy, Operation


class SlowConnector(CmaConnector):
    """Copies at once, and says so when it is let."""

    def __init__(self, *, patience_s: float = 30.0) -> None:
        super().__init__(patience_s=patience_s)
        self.let = threading.Event()
        self.finished = 0

    def _start(
        self, operation: Operation, remote: RemoteMemory, copies: Sequence[tuple[int, int, int]], message: bytes
    ) -> Transfer:
        return _Slow(self, operation, remote, super()._start(operation, remote, copies, message))


class _Slow(Transfer):
    def __init__(self, connector: SlowConnector, operation: Operation, remote: RemoteMemory, copied: Transfer) -> None:
        super().__init__(connector, operation, remote)
        self._slow = connector
        self._copied = copied

    def _poll(self) -> bool:
        return self._slow.let.is_set() and self._copied._poll()

    def _finish(self) -> None:
        self._slow.finished += 1


class Pair:
    """Two memories of two segments each, registered with a connector each; the first knows the second."""

    def __init__(self, ours: CmaConnector) -> None:
        self.tensors = [ExtensibleTensor(16 * FINE, FineHostDriver(), segments=2) for _ in range(2)]
        for tensor in self.tensors:
            tensor.commit([2 * FINE, FINE])
        self.ours, self.theirs = ours, CmaConnector()
        self.here = Registration(self.tensors[0], self.ours)
        self.there = Registration(self.tensors[1], self.theirs)
        self.remote = ours.connect(self.theirs.card(self.there).to_bytes())

    def copy(self, here: int, there: int, nbytes: int, segment: int = 0) -> Copy:
        return Copy(self.here.address(segment, here, nbytes), self.remote.address(segment, there, nbytes), nbytes)

    def close(self) -> None:
        self.here.close()
        self.there.close()
        for tensor in self.tensors:
            tensor.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(CmaConnector())
    yield made
    made.close()


@pytest.fixture
def slow() -> Iterator[Pair]:
    made = Pair(SlowConnector(patience_s=0.05))
    yield made
    made.close()


# Cards ----------------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
extents = st.lists(st.tuples(st.integers(1, 99), st.integers(0, 9)), max_size=5).map(
    lambda sizes: tuple(
        Extent(1000 * place, nbytes, segment, 100 * place) for place, (nbytes, segment) in enumerate(sizes)
    )
)
cards = st.builds(
    Card,
    connector=texts,
    agent=texts,
    version=st.builds(Version, texts, st.integers(0, 1 << 62)),
    label=texts,
    partial=st.booleans(),
    metadata=st.binary(max_size=99),
    mem_type=st.sampled_from(["DRAM", "VRAM"]),
    device_id=st.integers(0, 8),
    extents=extents,
)


@given(cards)
def test_a_card_survives_the_wire(card: Card) -> None:
    assert Card.from_bytes(card.to_bytes()) == card


@given(cards, st.data())
def test_a_card_that_is_cut_or_lacks_something_is_no_card(card: Card, data: st.DataObject) -> None:
    wire = card.to_bytes()
    with pytest.raises(ConfigError, match="card"):
        Card.from_bytes(wire[: data.draw(st.integers(0, len(wire) - 1))])
    fields: dict[str, Any] = json.loads(wire)
    key = data.draw(st.sampled_from(sorted(fields)))
    wrong = data.draw(st.sampled_from([None, 1.5, -1, {"a": 1}, [1, 2, 3]]))
    if key == "partial":
        return
    for changed in ({name: value for name, value in fields.items() if name != key}, fields | {key: wrong}):
        with pytest.raises(ConfigError):
            Card.from_bytes(json.dumps(changed).encode())


@pytest.mark.parametrize("wrong", [[[0, 10, 0, 0], [5, 10, 0, 10]], [[0, 0, 0, 0]], [[0, 10, 0]]])
def test_a_card_of_memory_that_cannot_be_is_refused(pair: Pair, wrong: list[list[int]]) -> None:
    fields = json.loads(pair.theirs.card(pair.there).to_bytes())
    with pytest.raises(ConfigError):
        Card.from_bytes(json.dumps(fields | {"extents": wrong}).encode())
    with pytest.raises(ConfigError, match="format"):
        Card.from_bytes(json.dumps(fields | {"vmmcache_card": 2}).encode())


def test_a_card_is_only_of_what_is_registered_with_that_connector(pair: Pair) -> None:
    with pytest.raises(StateError, match="has no card"):
        pair.ours.card(pair.there)
    unknown = ExtensibleTensor(8 * FINE, FineHostDriver())
    unknown.commit(FINE)
    with pytest.raises(StateError, match="is not registered"):
        pair.theirs.card(pair.there, unknown.registrable())
    unknown.close()
    pair.there.release()
    with pytest.raises(StateError, match="has no card"):
        pair.theirs.card(pair.there)


def test_two_memories_of_a_peer_are_told_apart_by_their_labels(pair: Pair) -> None:
    draft = ExtensibleTensor(8 * FINE, FineHostDriver())
    draft.commit(FINE)
    small = Registration(draft, pair.theirs, label="draft")
    remote = pair.ours.connect(pair.theirs.card(small))
    assert (remote.label, pair.remote.label) == ("draft", "kv_cache")
    assert remote.address(0, 0, 1) == draft.base_address
    assert pair.remote.address(0, 0, 1) == pair.tensors[1].base_address
    with pytest.raises(ConfigError):
        pair.ours.write(remote, [pair.copy(0, 0, FINE)])
    # They are void together: what a library knows, it knows of the agent.
    earlier = pair.theirs.card(pair.there)
    small.close()
    again = pair.ours.connect(pair.theirs.card(pair.there))
    assert (again.lost, remote.lost, pair.remote.lost) == (None, "it has begun epoch 1", "it has begun epoch 1")
    with pytest.raises(StaleSegment, match="of epoch 0, and the peer has told of epoch 1"):
        pair.ours.connect(earlier)
    assert again.lost is None
    draft.close()


def test_a_peer_that_was_started_again_is_another_whatever_its_epoch(pair: Pair) -> None:
    card = pair.theirs.card(pair.there)
    again = dataclasses.replace(card, version=Version("somebody else", 0))
    pair.ours.connect(dataclasses.replace(card, version=card.version._replace(epoch=7)))
    remote = pair.ours.connect(again)
    assert remote.version == again.version
    assert pair.remote.lost is not None
    with pytest.raises(StaleSegment, match="begun epoch"):
        pair.ours.write(pair.remote, [(0, 0, 1)])


# Transfers ------------------------------------------------------------------------------------------------------------


def test_every_byte_of_every_copy_is_moved_and_no_other(pair: Pair) -> None:
    ours, theirs = pair.tensors
    poke(ours.base_address, bytes(range(256)) * (2 * FINE // 256))
    transfer = pair.ours.write(pair.remote, [pair.copy(3, 2, 5), pair.copy(FINE - 1, FINE + 7, 2), pair.copy(0, 9, 1)])
    transfer.wait()
    assert transfer.done
    expected = bytearray(2 * FINE)
    expected[2:7], expected[FINE + 7 : FINE + 9], expected[9:10] = bytes(range(3, 8)), b"\xff\x00", b"\x00"
    assert peek(theirs.base_address, 2 * FINE) == bytes(expected)
    poke(theirs.base_address + theirs.segment_offsets[1], b"read me")
    pair.ours.read(pair.remote, [pair.copy(1, 0, 7, segment=1)]).wait()
    assert peek(ours.base_address + ours.segment_offsets[1], 9) == b"\x00read me\x00"


def test_one_bad_copy_among_many_keeps_all_of_them_from_being_moved(pair: Pair) -> None:
    poke(pair.tensors[0].base_address, b"\x07" * FINE)
    good = pair.copy(0, 0, FINE)
    for bad in (
        good._replace(remote=good.remote + FINE + 1),
        good._replace(local=good.local + FINE + 1),
        good._replace(nbytes=0),
        good._replace(nbytes=-1),
    ):
        with pytest.raises((ConfigError, AlignmentError)):
            pair.ours.write(pair.remote, [good, good, bad])
    with pytest.raises(ConfigError, match="nothing to move"):
        pair.ours.write(pair.remote, [])
    assert peek(pair.tensors[1].base_address, FINE) == bytes(FINE)


def test_growth_on_this_side_is_known_at_once(pair: Pair) -> None:
    pair.tensors[0].commit([4 * FINE, FINE])
    pair.ours.write(pair.remote, [pair.copy(0, 0, 1)]).wait()
    pair.here.refresh()
    pair.ours.write(pair.remote, [pair.copy(3 * FINE, 0, FINE)]).wait()
    local = pair.copy(2 * FINE, 0, FINE)
    pair.here.release()
    with pytest.raises(ConfigError, match="has not registered"):
        pair.ours.write(pair.remote, [local])


def test_a_transfer_that_fails_drops_the_peer_and_says_why(pair: Pair) -> None:
    copy = pair.copy(0, 0, FINE)
    pair.tensors[1].release_physical(revoke=True)
    transfer = pair.ours.write(pair.remote, [copy])
    for _ in range(2):
        with pytest.raises(ConnectorError, match="Bad address") as caught:
            transfer.wait()
    assert (caught.value.connector, caught.value.call, caught.value.name) == ("cma", "process_vm_writev", "EFAULT")
    assert transfer.done
    assert "failed: cma: process_vm_writev" in repr(transfer)
    assert pair.ours.peers == ()
    with pytest.raises(StaleSegment, match="a transfer failed: cma"):
        pair.remote.address(0, 0, 1)
    pair.tensors[1].restore()
    pair.there.restore()


def test_what_is_on_its_way_holds_up_the_release_and_nothing_is_lost(slow: Pair) -> None:
    assert isinstance(slow.ours, SlowConnector)
    transfer = slow.ours.write(slow.remote, [slow.copy(0, 0, FINE)])
    assert not transfer.done
    assert "running" in repr(transfer)
    with pytest.raises(StateError, match=r"has not ended within 0\.01 s; wait longer"):
        transfer.wait(0.01)
    with pytest.raises(StateError, match=r"has not ended within 0\.05 s, and nothing was deregistered"):
        slow.here.release()
    assert (slow.here.state, slow.ours.epoch) == ("registered", 0)
    slow.ours.let.set()
    slow.here.release()
    assert (transfer.done, slow.ours.finished) == (True, 1)
    transfer.wait()
    assert slow.ours.finished == 1


def test_a_release_waits_while_another_thread_lets_the_transfer_end(slow: Pair) -> None:
    assert isinstance(slow.ours, SlowConnector)
    vars(slow.ours)["patience_s"] = PATIENCE_S
    transfer = slow.ours.write(slow.remote, [slow.copy(0, 0, FINE)])
    releasing = threading.Thread(target=slow.here.release)
    releasing.start()
    time.sleep(0.01)
    assert releasing.is_alive()
    assert slow.here.state == "registered"
    slow.ours.let.set()
    releasing.join(PATIENCE_S)
    assert transfer.done
    assert slow.here.state == "released"


def test_closing_drops_the_peers(pair: Pair) -> None:
    pair.here.close()
    pair.ours.close()
    assert pair.remote.lost == "this side has closed its agent"
    with pytest.raises(StateError, match="is closed"):
        pair.ours.connect(pair.theirs.card(pair.there))


@pytest.mark.parametrize("options", [{"patience_s": -1}, {"patience_s": "soon"}])
def test_patience_is_a_time(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="patience_s"):
        CmaConnector(**options)
