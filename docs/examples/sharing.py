"""A cache that one process grows and another reads: the example of docs/sharing.md, both processes in one file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from vmmcache import ExtensibleTensor, SharedTensor, TensorServer

MIB = 1 << 20


def say(line: str) -> None:
    """Both processes write to one standard output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def importer(path: str) -> None:
    """The other process: maps what there is, follows, and writes something back."""
    with SharedTensor.connect(path) as shared:
        while shared.committed != (6 * MIB,):
            shared.next_change()
        while (data := shared.read([(0, 4 * MIB, 5)])[0]) == bytes(5):
            pass
        say(f"importer reads {data.decode()}")
        shared.write([(0, 0, b"seen!")])
        while (change := shared.next_change()) and change.event != "asleep":
            pass
        say(f"importer has {sum(shared.committed)} bytes while the exporter sleeps")


def exporter(path: str) -> None:
    """This process: commits, grows, sleeps. It waits for nobody but before memory goes."""
    with ExtensibleTensor(64 * MIB) as tensor, TensorServer(tensor, path):
        tensor.commit(2 * MIB)
        child = subprocess.Popen([sys.executable, __file__, path])
        tensor.commit(6 * MIB)
        tensor.write([(0, 4 * MIB, b"hello")])
        while tensor.read([(0, 0, 5)])[0] != b"seen!":
            pass
        tensor.release_physical(revoke=True)
        child.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        importer(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            exporter(str(Path(folder, "kv.sock")))
