"""An importer follows the exporter's tensor: growth by its difference, nothing goes before it let go (C5, C7)."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fine_host import FINE, FineHostDriver, KeepingDriver, UniformDriver
from tests.helpers import PATIENCE_S, Accounts, accounts, peek
from tests.sharing.support import contents, descriptors, event, eventually, follows, hurried, maps
from vmmcache import (
    Change,
    ConfigError,
    DriverError,
    ExtensibleTensor,
    LeaseError,
    SharedTensor,
    SharingError,
    StateError,
    TensorServer,
)
from vmmcache.testing import RecordingDriver

G = FINE


def test_both_see_the_same_bytes_at_addresses_of_their_own(tensor: ExtensibleTensor, shared: SharedTensor) -> None:
    tensor.write([(0, 3, b"ours")])
    shared.write([(1, 5, b"theirs")])
    assert contents(shared) == contents(tensor)
    assert peek(shared.base_address + 3, 4) == b"ours"
    assert peek(tensor.base_address + 8 * G + 5, 6) == b"theirs"
    assert shared.base_address != tensor.base_address
    assert (shared.capacity, shared.segment_sizes, shared.segment_offsets) == (16 * G, (8 * G,) * 2, (0, 8 * G))


def test_only_the_difference_travels(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor, theirs: RecordingDriver
) -> None:
    """Each growth is imported once; what was sent before stays as it is, at its address."""
    base = shared.base_address
    theirs.journal.clear()
    for granules in range(2, 6):
        tensor.commit(granules * G)
        eventually(lambda: follows(shared, tensor))
    verbs = [call.verb for call in theirs.journal if call.verb != "synchronise"]
    assert verbs.count("import_handle") == verbs.count("map") == verbs.count("grant") == 8
    assert "unmap" not in verbs
    assert maps(server) == [10]
    assert shared.base_address == base
    assert shared.physical_bytes == tensor.physical_bytes == 10 * G


def test_many_allocations_go_in_small_batches(path: Path) -> None:
    """The kernel takes 253 descriptors at once; the importer has to have room for those that are under way."""
    driver, theirs = FineHostDriver(), FineHostDriver()
    with ExtensibleTensor(100 * G, driver, chunk=G) as tensor, TensorServer(tensor, path) as server:
        tensor.commit(100 * G)
        tensor.write([(0, place * G, b"%03d" % place) for place in range(100)])
        with SharedTensor.connect(path, theirs) as shared:
            assert contents(shared) == contents(tensor)
            assert maps(server) == [100]
    assert accounts(theirs) == accounts(driver) == Accounts()


def test_what_an_importer_maps_is_leased(tensor: ExtensibleTensor, shared: SharedTensor) -> None:
    """C3, I9: the refusal names it, and nothing has moved."""
    tensor.commit(2 * G)
    eventually(lambda: follows(shared, tensor))
    operations: list[Callable[[], None]] = [
        *(tensor.release_physical, tensor.close),
        *(lambda: tensor.commit(G), lambda: tensor.commit(0)),
    ]
    for operation in operations:
        with pytest.raises(LeaseError, match=f"importer process {os.getpid()} of user {os.geteuid()}"):
            operation()
    assert (shared.committed, shared.connection) == ((2 * G, 2 * G), "connected")
    assert contents(shared) == contents(tensor)
    news = [shared.next_change(0) for _ in range(3)]
    assert [change and change.event for change in news] == ["committed", "committed", None], "nobody was asked"


def test_a_shrink_takes_from_the_importer_first_and_only_what_goes(
    tensor: ExtensibleTensor, shared: SharedTensor, driver: RecordingDriver, theirs: RecordingDriver
) -> None:
    """C5: unmapped there, then here."""
    tensor.commit([G, 3 * G])
    eventually(lambda: follows(shared, tensor))
    tensor.write([(1, 0, b"stays")])
    order: list[str] = []
    shared.on_change(lambda change: order.append(f"importer {change.event} {len(theirs.order.mapped)}"))
    tensor.on_change(lambda change: order.append(f"exporter {change.event} {len(theirs.order.mapped)}"))
    tensor.commit([G, G], revoke=True)
    eventually(lambda: len(order) == 4)
    assert order[:3] == ["exporter about_to_release 3", "importer about_to_release 3", "exporter committed 2"]
    assert order[3] == "importer committed 2"
    eventually(lambda: follows(shared, tensor))
    assert contents(shared)[1][:5] == b"stays"
    with pytest.raises(LeaseError):
        tensor.commit(0)


def test_sleep_and_wake(tensor: ExtensibleTensor, shared: SharedTensor, theirs: RecordingDriver) -> None:
    tensor.write([(0, 0, b"lost")])
    address = shared.base_address
    tensor.release_physical(revoke=True)
    change = event(shared, "about_to_release")
    assert change.ranges == ((0, G), (8 * G, 9 * G))
    event(shared, "asleep")
    assert (shared.committed, shared.state, theirs.mapped_bytes, theirs.allocated_bytes) == ((0, 0), "asleep", 0, 0)
    with pytest.raises(StateError, match="wait until the exporter commits or wakes"):
        shared.read([(0, 0, 1)])
    tensor.restore()
    event(shared, "restored")
    assert contents(shared) == contents(tensor) == [bytes(G)] * 2
    assert shared.base_address == address
    tensor.release_physical(backup=True, revoke=True)
    tensor.restore()
    event(shared, "restored")
    assert contents(shared) == contents(tensor)


def test_defragmenting_exchanges_the_importers_memory(tensor: ExtensibleTensor, shared: SharedTensor) -> None:
    tensor.commit([3 * G, G])
    tensor.write([(0, 2 * G, b"moves")])
    eventually(lambda: follows(shared, tensor))
    tensor.commit([3 * G, G], defragment=True, keep=True, revoke=True)
    eventually(lambda: shared.generation == tensor.generation and follows(shared, tensor))
    assert len(shared.allocations) == 2
    assert contents(shared) == contents(tensor)
    assert contents(shared)[0][2 * G : 2 * G + 5] == b"moves"


def test_closing_the_tensor_ends_it_for_all(path: Path, theirs: RecordingDriver) -> None:
    tensor = ExtensibleTensor(4 * G, FineHostDriver())
    tensor.commit(G)
    server = TensorServer(tensor, path)
    shared = SharedTensor.connect(path, theirs)
    tensor.close(revoke=True)
    event(shared, "closed")
    assert (shared.connection, shared.committed, theirs.mapped_bytes) == ("ended", (0,), 0)
    with pytest.raises(SharingError, match="the tensor is being closed"):
        SharedTensor.connect(path, theirs)
    shared.close()
    server.close()
    assert not path.exists()


def test_an_importer_that_refuses_keeps_everything_as_it_was(tensor: ExtensibleTensor, shared: SharedTensor) -> None:
    """I4; and its reason is in the exporter's error."""

    def refuse(change: Change) -> None:
        if change.event == "about_to_release":
            raise RuntimeError("a batch is running")

    end = shared.on_change(refuse)
    tensor.write([(0, 0, b"kept")])
    with pytest.raises(LeaseError, match=r"importer process .* refuses: .*a batch is running"):
        tensor.release_physical(revoke=True)
    assert tensor.state == "committed"
    assert contents(shared) == contents(tensor)
    end()
    tensor.release_physical(revoke=True)
    event(shared, "asleep")


def test_who_let_go_for_nothing_gets_it_back(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor, theirs: RecordingDriver
) -> None:
    """One importer lets go, another refuses: the operation is refused, and the first maps again."""
    with SharedTensor.connect(server.path, theirs) as other:
        tensor.write([(0, 0, b"kept")])

        def refuse(change: Change) -> None:
            if change.event == "about_to_release":
                event(shared, "about_to_release")
                raise RuntimeError("no")

        other.on_change(refuse)
        with pytest.raises(LeaseError, match="refuses"):
            tensor.commit(0, revoke=True)
        event(shared, "kept")
        event(other, "kept")
        assert contents(shared) == contents(other) == contents(tensor)


def test_an_importer_that_holds_is_waited_for(tensor: ExtensibleTensor, shared: SharedTensor) -> None:
    released = threading.Thread(target=lambda: tensor.release_physical(revoke=True))
    with shared.hold():
        released.start()
        event(shared, "about_to_release")
        assert shared.committed == (G, G)
        shared.write([(0, 0, b"still there")])
        assert tensor.state == "committed"
        with shared.hold():
            assert shared.read([(0, 0, 5)]) == [b"still"]
    released.join(PATIENCE_S)
    assert tensor.state == "asleep"
    event(shared, "asleep")


def test_one_that_is_late_is_named_or_cut_off(
    tensor: ExtensibleTensor, path: Path, theirs: RecordingDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps what it maps: the memory does not come back before it ends, and nothing is corrupted."""
    with TensorServer(tensor, path) as server, SharedTensor.connect(path, theirs) as shared:
        tensor.write([(0, 0, b"orphan")])
        with hurried(server), shared.hold():
            with pytest.raises(LeaseError, match="no answer in time") as caught:
                server.vacate()
            assert caught.value.owners == (f"importer process {os.getpid()} of user {os.geteuid()}",)
            assert tensor.state == "committed"
            with caplog.at_level(logging.WARNING):
                tensor.release_physical(revoke=True)
            assert tensor.state == "asleep"
            assert "is cut off" in caplog.text
            assert shared.read([(0, 0, 6)]) == [b"orphan"]
            eventually(lambda: server.importers == ())
        eventually(lambda: shared.connection == "lost")


def test_vacating_lets_the_tensor_go_without_revoking(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor
) -> None:
    server.vacate()
    assert maps(server) == [0]
    assert (shared.committed, shared.connection) == ((0, 0), "connected")
    tensor.release_physical()
    tensor.restore()
    event(shared, "restored")
    assert maps(server) == [2]


@pytest.mark.parametrize(
    "empty",
    [lambda server: server.vacate(), lambda server: server.tensor.check_leases(revoke=True)],
    ids=["vacate", "check_leases"],
)
def test_vacating_overtakes_changes_that_were_still_to_be_told(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor, empty: Callable[[TensorServer], None]
) -> None:
    """An importer that is busy hears of a change late; what it had to let go of since then it does not map again."""
    arrived, go_on, told = threading.Event(), threading.Event(), list[Change]()

    def linger(change: Change) -> None:
        told.append(change)
        arrived.set()
        assert go_on.wait(PATIENCE_S)

    shared.on_change(linger)
    tensor.commit(2 * G)
    assert arrived.wait(PATIENCE_S)
    tensor.commit(3 * G)  # to be told when it is done with the first
    vacating = threading.Thread(target=empty, args=(server,))
    vacating.start()
    (session,) = server._importers.now()
    eventually(lambda: session._requests)
    go_on.set()
    vacating.join(PATIENCE_S)
    eventually(lambda: [change.event for change in told] == ["committed", "about_to_release", "committed"])
    assert told[-1].committed == (0, 0)
    assert maps(server) == [0]
    tensor.release_physical(backup=True)
    tensor.restore()
    eventually(lambda: follows(shared, tensor))
    assert maps(server) == [6]


def test_several_importers(tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor) -> None:
    others = [SharedTensor.connect(server.path, FineHostDriver()) for _ in range(3)]
    tensor.commit(2 * G)
    eventually(lambda: all(follows(each, tensor) for each in [shared, *others]))
    others[0].write([(0, 2 * G - 4, b"same")])
    assert all(contents(each) == contents(tensor) for each in [shared, *others])
    assert maps(server) == [4] * 4
    others.pop().close()
    eventually(lambda: maps(server) == [4] * 3)
    tensor.commit(0, revoke=True)
    for each in [shared, *others]:
        eventually(lambda each=each: follows(each, tensor))  # type: ignore[misc]  # mypy: cannot infer a lambda's default
    for each in others:
        each.close()


def test_one_importer_too_many_is_told(tensor: ExtensibleTensor, path: Path, theirs: RecordingDriver) -> None:
    with TensorServer(tensor, path, most=1) as server, SharedTensor.connect(path, theirs):
        eventually(lambda: len(server.importers) == 1)
        with pytest.raises(SharingError, match="there are 1 importers already"):
            SharedTensor.connect(path, theirs)


def test_an_importer_that_leaves_gives_up_its_hold(
    tensor: ExtensibleTensor, server: TensorServer, theirs: RecordingDriver
) -> None:
    SharedTensor.connect(server.path, theirs).close()
    eventually(lambda: server.importers == ())
    tensor.release_physical()
    shared = SharedTensor.connect(server.path, theirs)
    assert shared.committed == (0, 0)
    del shared  # without a close: unmapped, and the exporter told
    eventually(lambda: server.importers == ())
    tensor.restore()
    tensor.release_physical()


def test_an_importer_that_only_reads(tensor: ExtensibleTensor, server: TensorServer) -> None:
    tensor.write([(0, 0, b"readable")])
    with SharedTensor.connect(server.path, FineHostDriver(), writable=False) as shared:
        assert not shared.writable
        assert shared.read([(0, 0, 8)]) == [b"readable"]
        with pytest.raises(DriverError, match="for reading only"):
            shared.write([(0, 0, b"no")])
        tensor.commit(2 * G)
        eventually(lambda: follows(shared, tensor))
        with pytest.raises(DriverError, match="for reading only"):
            shared.write([(1, G, b"no")])


def test_an_importer_without_a_thread_is_asked_when_it_looks(
    tensor: ExtensibleTensor, server: TensorServer, theirs: RecordingDriver
) -> None:
    with SharedTensor.connect(server.path, theirs, background=False) as shared:
        tensor.commit(2 * G)
        assert shared.committed == (G, G)
        while shared.committed != (2 * G, 2 * G):
            assert shared.poll(PATIENCE_S) > 0
        assert shared.poll() == 0
        refused: list[LeaseError] = []

        def sleep() -> None:
            try:
                tensor.release_physical(revoke=True)
            except LeaseError as error:
                refused.append(error)

        asleep = threading.Thread(target=sleep)
        asleep.start()
        with shared.hold():
            shared.poll(PATIENCE_S)
        asleep.join(PATIENCE_S)
        assert "this thread holds the memory" in str(refused[0])
        shared.poll(PATIENCE_S)
        assert (shared.problem, shared.committed) == (None, (2 * G, 2 * G))
        server.vacate(timeout_s=0.01, revoke=True)
        with pytest.raises(SharingError, match=r"is gone|has ended"):
            _poll_on(shared)
        assert shared.connection == "lost"


def _poll_on(shared: SharedTensor) -> None:
    while True:
        shared.poll(PATIENCE_S)


def test_who_follows_in_a_thread_is_not_polled_nor_closed_from_within(
    tensor: ExtensibleTensor, shared: SharedTensor
) -> None:
    with pytest.raises(StateError, match="follows by itself"):
        shared.poll()
    with shared.hold(), pytest.raises(StateError, match="follows or holds"):
        shared.close()
    refused: list[BaseException] = []

    def close(_: Change) -> None:
        try:
            shared.close()
        except StateError as error:
            refused.append(error)

    shared.on_change(close)
    tensor.commit(2 * G)
    eventually(lambda: refused)


def test_a_server_that_closes_lets_everybody_go(tensor: ExtensibleTensor, path: Path, theirs: RecordingDriver) -> None:
    server = TensorServer(tensor, path)
    shared = SharedTensor.connect(path, theirs)
    server.close()
    server.close()
    event(shared, "closed")
    assert (shared.connection, theirs.mapped_bytes, path.exists()) == ("ended", 0, False)
    tensor.commit(2 * G)
    tensor.release_physical()
    tensor.restore()
    shared.close()


def test_a_server_that_cannot_close_goes_on(tensor: ExtensibleTensor, path: Path, theirs: RecordingDriver) -> None:
    server = TensorServer(tensor, path)
    shared = SharedTensor.connect(path, theirs)
    with hurried(server), shared.hold(), pytest.raises(LeaseError, match="did not unmap"):
        server.close()
    SharedTensor.connect(path, theirs).close()
    shared.close()
    eventually(lambda: server.importers == ())
    server.close()


@pytest.mark.parametrize("kind", [KeepingDriver, UniformDriver])
def test_on_drivers_with_other_habits(path: Path, kind: type[FineHostDriver]) -> None:
    """D4, D10: equal chunks; and memory that comes back only when the addresses were freed for a moment."""
    driver, theirs = kind(), kind()
    with ExtensibleTensor(16 * G, driver, segments=2) as tensor, TensorServer(tensor, path):
        tensor.commit(3 * G)
        with SharedTensor.connect(path, theirs) as shared:
            address = shared.base_address
            tensor.release_physical(revoke=True)
            event(shared, "asleep")
            assert getattr(theirs, "kept", {}) == {}
            tensor.restore()
            event(shared, "restored")
            tensor.write([(1, 0, b"again")])
            assert contents(shared) == contents(tensor)
            assert shared.base_address == address


def test_the_socket_is_its_owners_alone(server: TensorServer, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(path.stat().st_mode)


@pytest.mark.parametrize("wrong", ["\0abstract", "", "x" * 120, b"bytes", 3])
def test_a_path_that_cannot_be_is_refused(tensor: ExtensibleTensor, wrong: Any) -> None:
    before = descriptors()
    with pytest.raises(ConfigError, match="path"):
        TensorServer(tensor, wrong)
    with pytest.raises(ConfigError, match="path"):
        SharedTensor.connect(wrong)
    assert descriptors() == before


def test_a_path_that_somebody_listens_at_is_refused_and_an_abandoned_one_taken(
    tensor: ExtensibleTensor, server: TensorServer, path: Path, tmp_path: Path
) -> None:
    before = descriptors()
    with pytest.raises(ConfigError, match="Address already in use"):
        TensorServer(tensor, path)
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ConfigError, match="Address already in use"):
        TensorServer(tensor, file)
    assert file.read_text() == "precious"
    with pytest.raises(ConfigError, match="No such file"):
        TensorServer(tensor, tmp_path / "nowhere" / "kv.sock")
    eventually(lambda: descriptors() == before)  # who looks whether somebody listens is let in for a moment
    for options in {"timeout_s": 0}, {"most": 0}, {"uids": [-1]}:
        with pytest.raises(ConfigError):
            TensorServer(tensor, tmp_path / "other", **options)
    assert descriptors() == before


def test_nobody_to_connect_to(tmp_path: Path, theirs: RecordingDriver) -> None:
    before = descriptors()
    with pytest.raises(SharingError, match="Start the TensorServer first") as caught:
        SharedTensor.connect(tmp_path / "kv.sock", theirs)
    assert caught.value.peer == str(tmp_path / "kv.sock")
    assert descriptors() == before


def test_another_kind_of_device_is_refused(server: TensorServer, theirs: RecordingDriver) -> None:
    class Foreign(FineHostDriver):
        device_type = "cuda"

    before = descriptors()
    with pytest.raises(SharingError, match="shares memory of 'cpu', and host is 'cuda'"):
        SharedTensor.connect(server.path, Foreign())
    eventually(lambda: descriptors() == before)


def test_who_they_are_is_shown(server: TensorServer, shared: SharedTensor) -> None:
    (importer,) = server.importers
    assert (importer.pid, importer.uid, importer.nbytes, importer.problem) == (os.getpid(), os.geteuid(), 2 * G, None)
    assert "1 importers" in repr(server)
    assert "connected" in repr(shared)
    assert shared.path in repr(shared)


def test_what_an_importer_keeps_after_it_let_go_of_some_is_leased_at_once(
    tensor: ExtensibleTensor, server: TensorServer, shared: SharedTensor
) -> None:
    """I9: a revoke ends the lease of a whole segment; the next operation finds another for what is still mapped."""
    for _ in range(20):
        tensor.commit(3 * G)
        eventually(lambda: follows(shared, tensor))
        tensor.commit(G, revoke=True)
        with pytest.raises(LeaseError, match="importer process"):
            tensor.release_physical()
        with pytest.raises(LeaseError, match="importer process"):
            tensor.commit(0)
        # Also what lies in the granule in which it was cut.
        tensor.commit(3 * G)
        eventually(lambda: follows(shared, tensor))
        tensor.commit(G + 1, revoke=True)
        with pytest.raises(LeaseError, match="importer process"):
            tensor.commit(G)
        tensor.commit(G, revoke=True)
    eventually(lambda: maps(server) == [2])
