"""Every driver call and every socket call of a shared life fails in turn: nothing leaks on either side (C7, I3)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S
from tests.sharing.support import contents, descriptors, eventually
from vmmcache import ExtensibleTensor, SharedTensor, TensorServer, VmmCacheError
from vmmcache.testing import RecordingDriver

G = FINE


def live(tensor: ExtensibleTensor, path: Path, theirs: RecordingDriver) -> list[str]:
    """A shared life with growth, shrink, sleep and wake, as far as it comes; the errors that came up."""
    problems: list[str] = []

    @contextlib.contextmanager
    def tolerant() -> Iterator[None]:
        try:
            yield
        except VmmCacheError as error:
            problems.append(str(error))

    with TensorServer(tensor, path, timeout_s=PATIENCE_S) as server:
        shared: SharedTensor | None = None
        with tolerant():
            tensor.commit(G)
        with tolerant():
            shared = SharedTensor.connect(path, theirs, timeout_s=PATIENCE_S)
        steps: list[Callable[[], None]] = [
            lambda: tensor.commit(3 * G),
            lambda: tensor.commit(G, revoke=True),
            lambda: tensor.release_physical(revoke=True),
            lambda: tensor.release_physical(revoke=True),  # finishes what was refused
            tensor.restore,
        ]
        for step in steps:
            with tolerant():
                step()
            if shared is not None:
                eventually(lambda: settled(server, shared, tensor))
                if shared.problem is not None:
                    problems.append(str(shared.problem))
        if shared is not None:
            if shared.connection == "connected" and shared.problem is None:
                with tolerant():
                    assert contents(shared) == contents(tensor)
            for _ in range(3):
                with tolerant():
                    shared.close()
        eventually(lambda: server.importers == ())
    return problems


def settled(server: TensorServer, shared: SharedTensor, tensor: ExtensibleTensor) -> bool:
    """Whether the importer follows, or cannot, or is gone."""
    (importer,) = server.importers or (None,)
    if importer is None or shared.connection != "connected":
        return importer is None and shared.connection != "connected"
    return importer.problem is not None or (
        shared.committed == tensor.committed and shared.generation == tensor.generation
    )


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "verb", ["reserve", "import_handle", "map", "grant", "unmap", "release", "synchronise", "free"]
)
def test_every_call_of_the_importers_driver(tmp_path: Path, verb: str, times: int) -> None:
    """It is behind, or gone; the exporter goes on. Whatever could not be given back goes with the next try."""
    before = descriptors()
    for nth in itertools.count(1):
        ours, theirs = RecordingDriver(FineHostDriver()), RecordingDriver(FineHostDriver())
        theirs.fail(nth, verb=verb, times=times)
        with ExtensibleTensor(8 * G, ours, segments=2) as tensor:
            problems = live(tensor, tmp_path / "kv.sock", theirs)
        assert bool(problems) == bool(theirs.injected), problems
        ours.check_clean()
        theirs.check_clean()
        eventually(lambda: descriptors() == before)
        if not theirs.injected:
            break
    assert nth > 1


@pytest.mark.parametrize("verb", ["create", "map", "grant", "unmap", "release", "export_handle"])
def test_every_call_of_the_exporters_driver(tmp_path: Path, verb: str) -> None:
    before = descriptors()
    for nth in itertools.count(1):
        ours, theirs = RecordingDriver(FineHostDriver()), RecordingDriver(FineHostDriver())
        ours.fail(nth, verb=verb)
        with ExtensibleTensor(8 * G, ours, segments=2) as tensor:
            live(tensor, tmp_path / "kv.sock", theirs)
            ours.heal()
        ours.check_clean()
        theirs.check_clean()
        eventually(lambda: descriptors() == before)
        if not ours.injected:
            break
    assert nth > 1


@pytest.mark.parametrize("call", ["sendmsg", "recvmsg"])
@pytest.mark.parametrize("code", [errno.ECONNRESET, errno.ENOBUFS])
def test_every_call_of_either_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    """Either end may find the connection broken at any moment; both give up what they hold."""
    before = descriptors()
    real = getattr(socket.socket, call)
    for nth in itertools.count(1):
        calls = itertools.count(1)

        def failing(sock: socket.socket, *arguments: Any, nth: int = nth, calls: Iterator[int] = calls) -> Any:
            if next(calls) == nth:
                raise OSError(code, os.strerror(code))
            return real(sock, *arguments)

        ours, theirs = RecordingDriver(FineHostDriver()), RecordingDriver(FineHostDriver())
        with monkeypatch.context() as patch, ExtensibleTensor(8 * G, ours, segments=2) as tensor:
            patch.setattr(socket.socket, call, failing, raising=False)
            live(tensor, tmp_path / "kv.sock", theirs)
        ours.check_clean()
        theirs.check_clean()
        eventually(lambda: descriptors() == before)
        if next(calls) <= nth:
            break
    assert nth > 10
