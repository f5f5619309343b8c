"""A world of ranks that a test tells what to do: real processes over torch.distributed, each at the end of a pipe.

What they are is in rank_process.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vmmcache.cache.ranks._store import GRACE_S, StoreRanks

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Error:
    """An error that a rank has raised, as far as it is looked at."""

    kind: str
    rank: int | None
    stage: str | None
    state: str | None
    text: str = field(default="", compare=False)


def hurry(ranks: StoreRanks, timeout_s: float) -> None:
    """Have a rank that has come together with the others wait no longer than this from now on."""
    vars(ranks).update(timeout_s=timeout_s, _grace_s=min(max(GRACE_S[0], timeout_s), GRACE_S[1]))
    vars(ranks._watch).update(_timeout_s=timeout_s)


class World:
    """The test's end of it."""

    def __init__(self, size: int, connections: Sequence[Connection], pids: Sequence[int]) -> None:
        self.size = size
        self.pids = pids
        self._connections = connections

    def tell(self, rank: int, *what: Any) -> None:
        """Have a rank begin something."""
        self._connections[rank].send(what)

    def hear(self, rank: int) -> Any:
        """What a rank says next."""
        assert self._connections[rank].poll(PATIENCE_S), f"rank {rank} says nothing"
        return self._connections[rank].recv()

    def ask(self, ranks: Sequence[int], *what: Any) -> list[Any]:
        """Have several ranks do something at once, and hear all of them."""
        for rank in ranks:
            self.tell(rank, *what)
        return [self.hear(rank) for rank in ranks]

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids[rank], number)

    def close(self) -> None:
        """Have all that are left end."""
        for connection in self._connections:
            connection.close()


@contextmanager
def world(size: int) -> Iterator[World]:
    """A world; whoever is left at the end of it has ended by itself, and so has the launcher."""
    with TemporaryDirectory() as folder, Listener(os.path.join(folder, "socket"), "AF_UNIX", size) as listener:
        environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "FATAL", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.cache.rank_process", str(listener.address), str(size)]
        launcher = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        try:
            found: dict[int, tuple[int, Connection]] = {}
            for _ in range(size):
                connection = listener.accept()
                rank, pid = connection.recv()
                found[rank] = pid, connection
            made = World(size, [found[rank][1] for rank in range(size)], [found[rank][0] for rank in range(size)])
            try:
                yield made
            finally:
                made.close()
            _, complaints = launcher.communicate(timeout=PATIENCE_S)
            assert (launcher.returncode, complaints) == (0, b"")
        finally:
            launcher.kill()
            launcher.wait()
            if launcher.stderr is not None:
                launcher.stderr.close()
