"""The same counted on the wire: ranks agree over a real TCPStore, through a relay that counts what passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from torch._C._distributed_c10d import PrefixStore, TCPStore

from vmmcache.benchmarks._rank_messages import LIFE, PREFIX, Cost
from vmmcache.cache.ranks._line import KeyValueStore
from vmmcache.cache.ranks._store import StoreRanks

__all__ = ["counted"]


class Relay:
    """Stands between ranks and a store, and counts the bytes that pass."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self.nbytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Of both sides."""
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for end in near, far:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.nbytes += len(data)
                target.sendall(data)
        except OSError:
            return


class Counting:
    """A store that counts the messages of each request."""

    MESSAGES: Final = {"set": 1, "add": 2, "wait": 2, "get": 4, "multi_get": 4, "compare_set": 2, "delete_key": 2}

    def __init__(self, store: Any, counted: list[str]) -> None:
        self._store = store
        self._counted = counted

    def __getattr__(self, verb: str) -> Any:
        self._counted.append(verb)
        return getattr(self._store, verb)


@contextmanager
def relayed() -> Iterator[tuple[Relay, Any]]:
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    relay = Relay(host.port)
    try:
        yield relay, TCPStore("127.0.0.1", relay.port, is_master=False, wait_for_workers=False)
    finally:
        relay.close()


def counted(size: int) -> list[Cost]:
    """What each agreement of a manager's life takes between `size` ranks, on the wire."""
    found: list[Cost] = []
    verbs: list[str] = []
    with relayed() as (relay, store):
        barrier = threading.Barrier(size + 1)

        def connect() -> KeyValueStore:
            own = PrefixStore(PREFIX, store.clone())
            return cast("KeyValueStore", Counting(own, verbs))

        def rank_life(rank: int) -> None:
            ranks = StoreRanks(connect, rank, size)
            for agreement in LIFE:
                barrier.wait()
                barrier.wait()
                ranks._combined(agreement.kind, agreement.stage, agreement.payload(rank))
            barrier.wait()
            barrier.wait()

        threads = [threading.Thread(target=rank_life, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        barrier.wait()
        for _ in LIFE:
            # Between the two nobody asks for anything: the answers have all come, and so has all that was counted.
            before = relay.nbytes
            verbs.clear()
            barrier.wait()
            barrier.wait()
            found.append(Cost(sum(Counting.MESSAGES[verb] for verb in verbs), relay.nbytes - before))
        barrier.wait()
        for thread in threads:
            thread.join()
    return found
