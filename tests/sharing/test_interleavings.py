"""Two things at a time that must not meet: each order is forced by whoever waits inside of it (C5, C7, I3, I9)."""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S, status_of_child
from tests.sharing.support import descriptors, event, eventually, follows, hurried, maps
from vmmcache import Change, ExtensibleTensor, LeaseError, SharedTensor, SharingError, StateError, TensorServer
from vmmcache.sharing._link import Link
from vmmcache.testing import RecordingDriver

G = FINE


class Lingering:
    """A lock whose owners, but for this thread, stay a while after they have let go of it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._ours = threading.current_thread()
        self.left, self.go_on = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        if threading.current_thread() is not self._ours:
            self.left.set()
            assert self.go_on.wait(PATIENCE_S)


def test_an_importer_that_is_dropped_while_its_thread_ends_leaves_no_descriptor(server: TensorServer) -> None:
    """The thread does not close what it did not know to be abandoned, and is not asked to when it is over."""
    before = descriptors()
    theirs = RecordingDriver(FineHostDriver())
    shared = SharedTensor.connect(server.path, theirs)
    linger = vars(shared._link)["_ending"] = Lingering()
    server._importers.now()[0].cut("the test says so")
    assert linger.left.wait(PATIENCE_S)
    gone = weakref.ref(shared)
    del shared
    assert gone() is None
    linger.go_on.set()
    theirs.check_clean()
    eventually(lambda: descriptors() == before)


def test_when_the_exporter_hears_of_the_end_nothing_is_left(server: TensorServer) -> None:
    """Of an importer that was dropped, and closes in a thread that nobody can wait for."""
    before = descriptors()
    shared = SharedTensor.connect(server.path, FineHostDriver())
    channel, left = shared._link._channel, list[list[str]]()
    close = channel.close

    def last() -> None:
        left.append(descriptors())
        close()

    vars(channel)["close"] = last
    del shared
    eventually(lambda: server.importers == ())
    # The two ends of the connection, and the exporter's own.
    assert left[0] == sorted([*before, "socket", "socket", "anon_inode"])
    assert descriptors() == before


def test_an_importer_that_two_threads_close_is_closed(server: TensorServer, theirs: RecordingDriver) -> None:
    before = descriptors()
    shared = SharedTensor.connect(server.path, theirs)
    link = shared._link
    following, seen = link._thread, list[None]()

    class Shared(Link):
        """As the first of two threads sees it: the other has waited for the same thread since it looked."""

        @property
        def _thread(self) -> threading.Thread | None:
            seen.append(None)
            return following if len(seen) == 1 else None

        @_thread.setter
        def _thread(self, _: threading.Thread | None) -> None:
            seen.append(None)

    link.__class__ = Shared
    link.stop()
    link.__class__ = Link
    shared.close()
    eventually(lambda: descriptors() == before)


def test_the_end_is_told_whatever_another_thread_tells_at_that_moment(
    server: TensorServer, shared: SharedTensor
) -> None:
    arrived, go_on, told = threading.Event(), threading.Event(), list[str]()

    def linger(change: Change) -> None:
        told.append(change.event)
        arrived.set()
        assert go_on.wait(PATIENCE_S)

    shared.on_change(linger)
    server.tensor.commit(2 * G)
    assert arrived.wait(PATIENCE_S)
    (session,) = server._importers.now()
    session.changed("closed")
    session.changed("committed")  # of an operation that ended before, and whose thread comes to it only now
    go_on.set()
    eventually(lambda: shared.connection == "ended")
    assert told[-1] == "closed"


def test_one_who_is_let_in_while_the_tensor_is_closed_hears_of_it(path: Path, theirs: RecordingDriver) -> None:
    tensor = ExtensibleTensor(4 * G, FineHostDriver())
    with TensorServer(tensor, path, timeout_s=PATIENCE_S) as server:
        look = server._full

        def closed_since() -> str | None:
            found = look()
            tensor.close()
            return found

        vars(server)["_full"] = closed_since
        with SharedTensor.connect(path, theirs, timeout_s=PATIENCE_S) as shared:
            eventually(lambda: shared.connection == "ended")


def test_a_lease_that_is_asked_back_is_asked_for_itself(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor
) -> None:
    """What the importer has answered to an operation of this thread before says nothing of this time."""
    tensor.commit(3 * G)
    eventually(lambda: follows(shared, tensor))
    tensor.commit(G, revoke=True)
    eventually(lambda: follows(shared, tensor))
    tensor.check_leases(revoke=True)
    assert maps(server) == [0]
    tensor.release_physical()
    event(shared, "asleep")


def test_a_server_that_comes_while_an_operation_begins_hears_what_came_of_it(path: Path) -> None:
    """The operation has asked nobody, because nobody was there."""
    theirs = RecordingDriver(FineHostDriver())
    with ExtensibleTensor(8 * G, FineHostDriver()) as tensor:
        made: list[tuple[TensorServer, SharedTensor]] = []
        lock = tensor._region.gate.operation

        @contextmanager
        def late(name: str, committed: Callable[[], int] | None = None) -> Iterator[None]:
            if not made:
                server = TensorServer(tensor, path, timeout_s=PATIENCE_S)
                made.append((server, SharedTensor.connect(path, theirs, timeout_s=PATIENCE_S)))
            with lock(name, committed):
                yield

        vars(tensor._region.gate)["operation"] = late
        tensor.commit(2 * G)
        ((server, shared),) = made
        eventually(lambda: follows(shared, tensor))
        shared.close()
        server.close()
    theirs.check_clean()


def test_who_is_interrupted_while_holds_are_waited_for_keeps_nobody_out(server: TensorServer) -> None:
    with SharedTensor.connect(server.path, FineHostDriver(), background=False) as shared:
        holds = shared._link.holds

        def interrupt(_: Callable[[], object], timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holds._changed, "wait_for", interrupt)
            with pytest.raises(KeyboardInterrupt), holds.none():
                raise AssertionError("nobody has waited")
        assert not holds._waiting
        with shared.hold():
            pass


def test_an_importer_without_room_for_a_thread_leaves_nothing(
    server: TensorServer, theirs: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, start = descriptors(), threading.Thread.start

    def full(thread: threading.Thread) -> None:
        if "importer of" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(SharingError, match="can't start new thread") as caught:
        SharedTensor.connect(server.path, theirs)
    theirs.check_clean()
    eventually(lambda: descriptors() == before)
    assert caught.tb is not None, "whose frames hold what was made, and so it has to be closed"


def test_a_server_that_two_threads_close_is_closed_by_one_after_the_other(tensor: ExtensibleTensor, path: Path) -> None:
    server = TensorServer(tensor, path, timeout_s=PATIENCE_S)
    leave, inside, go_on = server._door.close, threading.Event(), threading.Event()

    def linger() -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        leave()

    class Watched:
        """The server's lock, which lets the first go on when there is a second."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if not self._lock.acquire(blocking=False):
                go_on.set()
                assert self._lock.acquire(timeout=PATIENCE_S)

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    vars(server)["_ending"] = Watched()
    vars(server._door)["close"] = linger
    first = threading.Thread(target=server.close)
    first.start()
    assert inside.wait(PATIENCE_S)
    server.close()
    first.join(PATIENCE_S)
    assert not path.exists()


def test_what_stays_is_leased_all_the_time(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor, theirs: RecordingDriver
) -> None:
    """I9: while one operation has an importer let go of some, another cannot take the rest from under it."""
    tensor.commit(3 * G)
    eventually(lambda: follows(shared, tensor))
    tell, changed, go_on = tensor._observers.tell, threading.Event(), threading.Event()
    ours = threading.current_thread()

    def linger(*news: Change) -> None:
        if threading.current_thread() is not ours:
            changed.set()
            assert go_on.wait(PATIENCE_S)
        tell(*news)

    vars(tensor._observers)["tell"] = linger
    shrinking = threading.Thread(target=tensor.commit, args=((G, 3 * G),), kwargs={"revoke": True})
    shrinking.start()
    assert changed.wait(PATIENCE_S)  # it has shrunk, and nobody has heard of it yet
    assert tensor.committed == (G, 3 * G)
    with pytest.raises(LeaseError, match="importer process"):
        tensor.commit((0, 3 * G))
    with pytest.raises(LeaseError, match="importer process"):
        tensor.release_physical()
    go_on.set()
    shrinking.join(PATIENCE_S)
    eventually(lambda: follows(shared, tensor))
    assert theirs.mapped_bytes == 4 * G
    tensor.commit((2 * G, 0), revoke=True)
    eventually(lambda: follows(shared, tensor))


def test_who_waits_for_the_exporter_is_woken_by_a_close(
    server: TensorServer, theirs: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedTensor.connect(server.path, theirs, background=False)
    waiting, done, make = threading.Event(), list[int](), select.poll

    class Watched:
        def __init__(self) -> None:
            self._poll = make()
            self.register = self._poll.register

        def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
            if threading.current_thread() is polling:
                waiting.set()
            return self._poll.poll(timeout)

    monkeypatch.setattr(select, "poll", Watched)
    polling = threading.Thread(target=lambda: done.append(shared.poll(PATIENCE_S)))
    polling.start()
    assert waiting.wait(PATIENCE_S)
    shared.close()
    polling.join(PATIENCE_S / 2)
    assert done == [0]


@pytest.mark.parametrize("busy", [False, True])
def test_a_vacating_that_is_refused_leaves_everything_as_it_was(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor, busy: bool
) -> None:
    """I4: who let go for nothing gets it back; who is late keeps it, or gets it back when it comes to it."""
    with SharedTensor.connect(server.path, FineHostDriver()) as late:
        arrived, go_on, told = threading.Event(), threading.Event(), list[str]()

        def linger(change: Change) -> None:
            told.append(change.event)
            arrived.set()
            assert go_on.wait(PATIENCE_S)

        if busy:  # with a change, so that it has not even heard of the question when it is withdrawn
            late.on_change(linger)
            tensor.commit(2 * G)
            assert arrived.wait(PATIENCE_S)
            tensor.commit(3 * G)
        with late.hold():
            with hurried(server), pytest.raises(LeaseError, match="no answer in time"):
                server.vacate()
            event(shared, "kept")
            eventually(lambda: follows(shared, tensor))
            go_on.set()
        if not busy:
            event(late, "kept")
        eventually(lambda: follows(late, tensor))
        eventually(lambda: maps(server) == [sum(tensor.committed) // G] * 2)
        assert "about_to_release" not in told


def test_a_forked_child_leaves_both_sides_alone(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor
) -> None:
    """Sockets, and what wakes threads, are the parent's as well; locks may be held by threads that are not there."""

    def child() -> None:
        refused = 0
        for call in shared.close, server.close, server.vacate, shared.poll:
            try:
                call()
            except StateError as error:
                refused += error.state == "forked"
        shared._link.abandon()
        os._exit(refused)

    with shared._link._ending, server._importers._lock:
        holding = threading.Thread(target=lambda: codes.append(status_of_child(child)))
        codes: list[int] = []
        holding.start()
        holding.join(PATIENCE_S)
    assert codes == [4]
    assert select.select([shared._link._wake], [], [], 0) == ([], [], [])
    tensor.commit(2 * G)
    eventually(lambda: follows(shared, tensor))
