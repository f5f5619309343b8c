"""A server goes on letting importers in after it could not, and is made as a whole or not at all (C7)."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sharing.support import contents, descriptors, eventually
from vmmcache import ConfigError, ExtensibleTensor, SharedTensor, SharingError, TensorServer
from vmmcache.sharing._door import Door
from vmmcache.sharing._peers import connect
from vmmcache.testing import RecordingDriver


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Room for so many descriptors more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    # Up to the limit without a gap, so that the limit says how many are left.
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                break
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("left", [1, 2, 3])
def test_one_who_cannot_be_let_in_for_want_of_descriptors_is_not_the_last(
    server: TensorServer, tensor: ExtensibleTensor, theirs: RecordingDriver, left: int
) -> None:
    """With room for the connection, but not for what a session needs, and whatever else there is no room for."""
    path = server.path
    before = descriptors()
    with descriptors_left(left):
        sock = None
        try:
            sock = connect(path, 5)
            sock.settimeout(0.2)
            sock.recv(1)
        except (SharingError, OSError):
            assert left < 4
        finally:
            if sock is not None:
                sock.close()
    eventually(lambda: server.importers == () and descriptors() == before)
    with SharedTensor.connect(path, theirs) as shared:
        assert contents(shared) == contents(tensor)


def test_one_for_whom_there_is_no_thread_is_not_the_last(
    server: TensorServer, tensor: ExtensibleTensor, theirs: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("vmmcache importer"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SharingError):
            SharedTensor.connect(server.path, theirs, background=False)
    eventually(lambda: server.importers == ())
    with SharedTensor.connect(server.path, theirs) as shared:
        assert contents(shared) == contents(tensor)


@pytest.mark.parametrize("missing", ["descriptor", "thread"])
def test_a_server_that_cannot_be_made_leaves_nothing(
    tensor: ExtensibleTensor, path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    before = descriptors()

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_descriptor(*_: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        if missing == "thread":
            patch.setattr(threading.Thread, "start", no_thread)
        else:
            patch.setattr(os, "eventfd", no_descriptor)
        with pytest.raises(SharingError, match="cannot be opened"):
            TensorServer(tensor, path)
    assert (descriptors(), path.exists()) == (before, False)
    assert not tensor._observers
    with TensorServer(tensor, path):
        assert path.exists()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("timeout_s", wrong) for wrong in (0, -1, float("nan"), float("inf"), "1", None)),
        *(("mode", wrong) for wrong in (-1, 0o1777, "rw", None)),
        *(("kind", wrong) for wrong in ("dma_buf", 1)),
        *(("uids", wrong) for wrong in ((-1,), ("root",))),
        *(("most", wrong) for wrong in (0, 1.5)),
        ("tensor", None),
    ],
)
def test_arguments_of_a_server_that_cannot_be(tensor: ExtensibleTensor, path: Path, field: str, wrong: Any) -> None:
    before = descriptors()
    arguments: dict[str, Any] = {"tensor": tensor, "path": path, field: wrong}
    with pytest.raises(ConfigError, match=field):
        TensorServer(**arguments)
    assert (descriptors(), path.exists()) == (before, False)


def test_a_door_is_shut_and_closed_twice(path: Path) -> None:
    door = Door(str(path), 0o600, lambda sock: sock.close())
    door.open()
    for _ in range(2):
        door.shut()
    for _ in range(2):
        door.close()
    assert not path.exists()
