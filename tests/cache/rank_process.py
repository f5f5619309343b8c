"""One rank of a world (rank_world.py), and as a script their launcher: it imports torch once, and forks every rank.

A rank does one thing after the other and says what came of it. It can be made to say when it is about to make a request
to the store, and to kill itself at one.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Client, Connection
from typing import Any

from tests.cache.rank_world import PATIENCE_S, Error, hurry


class Watched:
    """A store that says when it is asked, and may end the process before it is."""

    def __init__(self, store: Any, pipe: Connection) -> None:
        self._store = store
        self._pipe = pipe
        self.tell_of: str | None = None
        self.die_at: int | None = None

    def __getattr__(self, verb: str) -> Any:
        if self.die_at is not None:
            if not self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.die_at -= 1
        if verb == self.tell_of:
            self._pipe.send(("at", verb))
        return getattr(self._store, verb)


class Rank:
    """What a rank can be told."""

    def __init__(self, rank: int, size: int, pipe: Connection) -> None:
        self._rank = rank
        self._size = size
        self._pipe = pipe
        self._store: Any = None
        self._groups: dict[str, Any] = {"all": None}
        self._made: dict[str, Any] = {}

    def host(self) -> int:
        """Host the store that torch.distributed is to use; its port."""
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return int(self._store.port)

    def start(self, port: int, backend: str, agent: bool) -> None:
        """Make the default group."""
        import torch
        from torch import distributed
        from torch._C._distributed_c10d import TCPStore

        if agent:
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        if backend == "none":
            # Its collectives are those of the base class, which all raise.
            make: Any = distributed.ProcessGroup
            distributed.Backend.register_backend(
                "none", lambda store, rank, size, timeout: make(rank, size), devices=["cpu"]
            )
        if self._store is None:
            self._store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        distributed.init_process_group(backend, store=self._store, rank=self._rank, world_size=self._size)
        if backend == "none":
            try:
                distributed.all_reduce(torch.zeros(1))
            except RuntimeError:
                return
            raise AssertionError("a collective was possible")

    def group(self, name: str, members: list[int]) -> None:
        """Make a process group; all ranks do."""
        from torch import distributed

        self._groups[name] = distributed.new_group(members)

    def make(self, name: str, group: str, timeout_s: float, file: str | None = None) -> tuple[int, int]:
        """Make a TorchRanks."""
        from torch._C._distributed_c10d import FileStore

        from vmmcache import TorchRanks

        store = None if file is None else FileStore(file, self._size)
        # All come to this; what is to be late is late only afterwards.
        ranks = self._made[name] = TorchRanks(self._groups[group], max(timeout_s, PATIENCE_S), store=store)
        hurry(ranks, timeout_s)
        ranks._line._store = Watched(ranks._line._store, self._pipe)  # a test's ear
        return ranks.rank, ranks.size

    def watch(self, name: str, tell_of: str | None, die_at: int | None) -> None:
        """Say when the store is asked for something; end at the n-th request from now."""
        watched = self._made[name]._line._store
        watched.tell_of, watched.die_at = tell_of, die_at

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a TorchRanks."""
        return getattr(self._made[name], method)(*arguments)

    def destroy(self) -> None:
        """What an engine does at its end."""
        from torch import distributed

        distributed.destroy_process_group()

    def run(self) -> None:
        """One thing after the other, until the test has gone."""
        from vmmcache import ConfigError, StateError

        while True:
            try:
                what, *arguments = self._pipe.recv()
            except EOFError:
                return
            try:
                answer = getattr(self, what)(*arguments)
            except (StateError, ConfigError) as error:
                rank, stage, state = (getattr(error, name, None) for name in ("rank", "stage", "state"))
                answer = Error(type(error).__name__, rank, stage, state, str(error))
            self._pipe.send(answer)


def main(address: str, size: int) -> int:
    import torch.distributed

    import vmmcache.cache.ranks._torch  # noqa: F401 -- before the fork, so that it is loaded once

    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            with Client(address, "AF_UNIX") as pipe:
                pipe.send((rank, os.getpid()))
                Rank(rank, size, pipe).run()
            # Not by way of what the launcher would do at its exit.
            os._exit(0)
        children.append(child)
    del torch
    for child in children:
        os.waitpid(child, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
