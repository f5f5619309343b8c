"""What tests of sharing need: a tensor with a server, importers, and descriptors that are counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fine_host import FINE
from tests.helpers import PATIENCE_S
from vmmcache import Change, ExtensibleTensor, SharedTensor, TensorServer

__all__ = ["FINE", "contents", "descriptors", "event", "eventually", "follows", "hurried"]


def descriptors() -> list[str]:
    """What this process has open, sorted."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry).partition(":")[0])
        except FileNotFoundError:
            continue  # the one that lists the folder
    return sorted(found)


def eventually(condition: Callable[[], object]) -> None:
    """Wait for what another thread is about to do. No test passes by waiting."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.001)


@contextmanager
def hurried(server: TensorServer) -> Iterator[None]:
    """Whoever is asked to let go meanwhile is late at once; who comes, comes in peace."""
    before = server._timeout_s
    vars(server)["_timeout_s"] = 0.2
    try:
        yield
    finally:
        vars(server)["_timeout_s"] = before


def event(shared: SharedTensor, name: str) -> Change:
    """The next change of a name; those before it are passed over."""
    while (change := shared.next_change(PATIENCE_S)) is not None:
        if change.event == name:
            return change
    raise AssertionError(f"no {name} came")


def follows(shared: SharedTensor, tensor: ExtensibleTensor) -> bool:
    """Whether an importer shows what the exporter has committed."""
    return shared.committed == tensor.committed


def contents(tensor: ExtensibleTensor | SharedTensor) -> list[bytes]:
    """All committed bytes, a string for each segment."""
    if not tensor.committed_bytes:
        return [b""] * len(tensor.committed)  # asleep, perhaps
    return [bytes(data) for data in tensor.read((i, 0, size) for i, size in enumerate(tensor.committed))]


def maps(server: TensorServer) -> list[int]:
    """How many allocations each importer maps, as the exporter knows."""
    return [importer.allocations for importer in server.importers]
