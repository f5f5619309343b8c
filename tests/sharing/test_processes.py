"""A tensor shared between real processes: the same bytes both ways, and what is left when one of them dies (C7)."""

from __future__ import annotations

import ast
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S
from tests.sharing.support import contents, descriptors, event, eventually, follows, maps
from vmmcache import ExtensibleTensor, LeaseError, SharedTensor, SharingError, TensorServer
from vmmcache.testing import RecordingDriver

G = FINE
NOBODY = 65534
ROOT = Path(__file__).resolve().parent.parent.parent


class Child:
    """Another process that exports, or imports, and does what it is told."""

    def __init__(self, role: str, path: Path | str, *uid: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.sharing.child", role, str(path), *map(str, uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.errors = ""
        assert self._line() == "ready\n", self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __call__(self, expression: str) -> Any:
        """The value of an expression over there."""
        assert self.process.stdin is not None
        print(expression, file=self.process.stdin, flush=True)
        line = self._line()
        try:
            return ast.literal_eval(line)
        except (ValueError, SyntaxError):
            return line.strip()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> str:
        """Without a chance to clean up. What it said on standard error."""
        self.process.send_signal(signal.SIGKILL)
        return self.end()

    def end(self) -> str:
        """Let it end, and see what it said on standard error."""
        if self.process.returncode is None:
            _, self.errors = self.process.communicate(timeout=PATIENCE_S)
        return self.errors


def test_a_life_seen_from_another_process(tensor: ExtensibleTensor, server: TensorServer) -> None:
    """Growth, bytes both ways, shrink, sleep, wake; no torch is needed over there, and nothing is left open."""
    with Child("import", server.path) as child:
        before = child("descriptors()")
        for granules in 2, 3, 5:
            tensor.commit(granules * G)
            tensor.write([(0, granules * G - 3, b"%03d" % granules)])
            assert child(f"eventually(lambda: shared.committed == ({granules * G},) * 2)") is None
            assert child("contents(shared)") == contents(tensor)
        assert child("shared.write([(1, 4 * G, b'theirs')])") is None
        assert tensor.read([(1, 4 * G, 6)]) == [b"theirs"]
        with pytest.raises(LeaseError, match=f"importer process {child.process.pid} "):
            tensor.commit(G)
        tensor.commit([G, 5 * G], revoke=True)
        assert child(f"eventually(lambda: shared.committed == ({G}, {5 * G}))") is None
        assert child("contents(shared)") == contents(tensor)
        tensor.release_physical(backup=True, revoke=True)
        assert child("event(shared, 'asleep').committed") == (0, 0)
        assert child("driver.held.mappings, driver.held.allocations") == (0, 0)
        tensor.restore()
        assert child("event(shared, 'restored').committed") == (G, 5 * G)
        assert child("contents(shared)") == contents(tensor)
        assert child("torch()") is False
        assert child("descriptors()") == before + 3, "one an allocation: there were two, and are five"
        assert child("shared.close()") is None
        eventually(lambda: server.importers == ())
        assert child("driver.held") == "Held(reservations=0, mappings=0, allocations=0)"
    assert child.process.returncode == 0
    assert child.errors == ""


def test_an_importer_that_is_killed_releases_its_hold(tensor: ExtensibleTensor, server: TensorServer) -> None:
    first, second = Child("import", server.path), Child("import", server.path)
    eventually(lambda: len(server.importers) == 2)
    assert {importer.pid for importer in server.importers} == {first.process.pid, second.process.pid}
    first.kill()
    eventually(lambda: len(server.importers) == 1)
    tensor.write([(0, 0, b"goes on")])
    assert second("shared.read([(0, 0, 7)])[0]") == "bytearray(b'goes on')"
    second.kill()
    eventually(lambda: server.importers == ())
    tensor.release_physical()
    tensor.restore()


def test_an_importer_that_just_ends_leaves_nothing(tensor: ExtensibleTensor, server: TensorServer) -> None:
    """Without a close, at the end of its interpreter."""
    with Child("import", server.path) as child:
        eventually(lambda: maps(server) == [2])
    assert (child.process.returncode, child.errors) == (0, "")
    eventually(lambda: server.importers == ())
    tensor.release_physical()


def test_an_importer_that_is_killed_while_it_is_waited_for(tensor: ExtensibleTensor, server: TensorServer) -> None:
    child = Child("import", server.path)
    os.kill(child.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)  # until then it may still answer
    with pytest.raises(LeaseError, match="no answer in time"):
        server.vacate(timeout_s=0.1)
    child.kill()
    tensor.release_physical(revoke=True)
    eventually(lambda: server.importers == ())


def test_what_the_exporter_leaves_behind_stays_valid(tmp_path: Path, theirs: RecordingDriver) -> None:
    """Memory lives as long as anyone maps it."""
    before = descriptors()
    path = tmp_path / "kv.sock"
    child = Child("export", path)
    child("tensor.commit(2 * G)")
    with SharedTensor.connect(path, theirs) as shared:
        assert child("tensor.write([(1, 7, b'legacy')])") is None
        child.kill()
        event(shared, "lost")
        assert (shared.connection, shared.committed) == ("lost", (2 * G, 2 * G))
        assert isinstance(shared.problem, SharingError)
        assert shared.read([(1, 7, 6)]) == [b"legacy"]
        shared.write([(1, 7, b"still ")])
        assert shared.read([(1, 7, 6)]) == [b"still "]
        assert path.exists(), "nobody was left to remove it"
        with pytest.raises(SharingError, match="start the TensorServer again"):
            SharedTensor.connect(path, theirs)
        with ExtensibleTensor(G, FineHostDriver()) as tensor, TensorServer(tensor, path):
            SharedTensor.connect(path, FineHostDriver()).close()
    for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
        if stream is not None:
            stream.close()
    assert descriptors() == before


def test_an_exporter_that_just_ends_removes_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "kv.sock"
    with Child("export", path) as child:
        child("tensor.commit(2 * G)")
        shared = SharedTensor.connect(path, FineHostDriver())
    assert child.process.returncode == 0
    assert not path.exists()
    event(shared, "lost")
    assert contents(shared) == [bytes(2 * G)] * 2
    shared.close()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users may enter: those of pytest are their owner's alone."""
    with tempfile.TemporaryDirectory(prefix="vmmcache-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@needs_root
def test_a_stranger_cannot_even_reach_the_socket(folder: Path, tensor: ExtensibleTensor) -> None:
    with TensorServer(tensor, folder / "kv.sock") as server, Child("nothing", server.path, NOBODY) as child:
        answer = child("SharedTensor.connect(path, driver)")
    assert "Permission denied. The socket is its owner's alone" in answer


@needs_root
def test_a_stranger_is_refused_before_a_byte_of_state(
    folder: Path, tensor: ExtensibleTensor, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the mode lets it through, its uid does not: with the reason, on both sides."""
    reason = f"user {NOBODY} is not user 0, and not among uids=[]"
    caplog.set_level(logging.WARNING)
    with (
        TensorServer(tensor, folder / "kv.sock", mode=0o666) as server,
        Child("nothing", server.path, NOBODY) as child,
    ):
        # Not even asked who we are: it would not trust us either.
        answer = child("SharedTensor.connect(path, driver, uids=[0])")
        raw = child(
            "(lambda s: (s.connect(path), s.recv(10000), s.recv(1))[1:])(__import__('socket').socket(1))",
        )
        mistrust = child("SharedTensor.connect(path, driver)")
        assert server.importers == ()
    assert answer == f"SharingError: {server.path}: refuses us: {reason}"
    assert f"process {child.process.pid} of user {NOBODY} is refused: {reason}" in caplog.text
    assert raw[1] == b""
    assert raw[0][12:] == b"\0\0\0\0" + len(reason).to_bytes(2, "little") + reason.encode(), "the reason, and no more"
    assert f"is served by process {os.getpid()} of user 0" in mistrust


@needs_root
def test_a_user_that_was_named_is_let_in(folder: Path, tensor: ExtensibleTensor) -> None:
    path = folder / "kv.sock"
    with TensorServer(tensor, path, uids=[NOBODY], mode=0o666) as server, Child("nothing", path, NOBODY) as child:
        tensor.write([(0, 0, b"trusted")])
        expression = (
            "(lambda s: (bytes(s.read([(0, 0, 7)])[0]), s.close())[0])(SharedTensor.connect(path, driver, uids=[0]))"
        )
        assert child(expression) == b"trusted"
        eventually(lambda: server.importers == ())


def test_an_importer_of_an_importers_memory_follows_too(
    tensor: ExtensibleTensor, server: TensorServer, theirs: RecordingDriver
) -> None:
    """Three processes: what the second writes, the third reads."""
    with SharedTensor.connect(server.path, theirs) as shared, Child("import", server.path) as child:
        tensor.commit(3 * G)
        eventually(lambda: follows(shared, tensor))
        assert child(f"eventually(lambda: shared.committed == ({3 * G},) * 2)") is None
        assert child("shared.write([(0, 2 * G, b'around')])") is None
        assert shared.read([(0, 2 * G, 6)]) == tensor.read([(0, 2 * G, 6)]) == [b"around"]
