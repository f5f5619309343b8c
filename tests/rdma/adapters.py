"""In the machine: vmmcache's adapters over real verbs, with the guard and past it.

Two connectors of one library in one process, the target's memory in a tensor of its own. What a transfer did is read
through the target's own mapping, never from what the library says of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack

from tests.rdma.job_verbs import SIZE, equal, fill
from vmmcache import ConnectorError, ExtensibleTensor, LeaseError
from vmmcache.connectors.cards import RemoteMemory
from vmmcache.connectors.registration import Registration
from vmmcache.connectors.transfers import TransferConnector

__all__ = ["run"]


class Pair:
    """A source and a target, each with its tensor, its connector and its registration."""

    def __init__(self, connect: Callable[[], TransferConnector], stack: ExitStack) -> None:
        # Last in, first out: registrations go before connectors, and connectors before the memory.
        self.source_memory = stack.enter_context(ExtensibleTensor(SIZE))
        self.target_memory = stack.enter_context(ExtensibleTensor(2 * SIZE))
        self.source_memory.commit(SIZE)
        self.target_memory.commit(SIZE)
        self.source = stack.enter_context(connect())
        self.target = stack.enter_context(connect())
        self.here = stack.enter_context(Registration(self.source_memory, self.source))
        self.there = stack.enter_context(Registration(self.target_memory, self.target))
        self.remote = self.meet()

    def meet(self) -> RemoteMemory:
        self.remote = self.source.connect(self.target.card(self.there).to_bytes())
        return self.remote

    def write(self, value: int, offset: int = 0) -> tuple[str, int]:
        """Write a pattern to the target: what the library says of it, and how many bytes the target has."""
        said = self.attempt(value, offset)
        return said, equal(self.target_memory.base_address + offset, value)

    def attempt(self, value: int, offset: int = 0) -> str:
        """The same without looking, for a target that has no memory to look at."""
        fill(self.source_memory.base_address, value)
        local = self.here.address(0, 0, SIZE)
        try:
            self.source.write(self.remote, [(local, self.remote.address(0, offset, SIZE), SIZE)]).wait(60)
        except ConnectorError as error:
            return f"{type(error).__name__}: {error}"
        return "done"


def moves(pair: Pair) -> dict[str, object]:
    """(a) Registered memory is reached, and so is what grew while it was registered."""
    first = pair.write(1)
    pair.target_memory.commit(2 * SIZE)
    fresh = pair.there.refresh()
    pair.source.connect(pair.target.card(pair.there, fresh).to_bytes())
    grown = pair.write(2, offset=SIZE)
    return {"first": first, "grown": grown, "ok": (first, grown) == (("done", SIZE), ("done", SIZE))}


def stale(pair: Pair) -> dict[str, object]:
    """(b) The leases taken away, nobody refuses to unmap, and a transfer is lost that the library calls done."""
    pair.there._drop_leases()
    pair.target_memory.release_physical()
    pair.target_memory.restore()
    said, arrived = pair.write(77)
    return {"said": said, "bytes_arrived": arrived, "ok": arrived == 0 and said == "done"}


def guarded(pair: Pair) -> dict[str, object]:
    """(c) The unmap is refused; asked to let go, the connector deregisters first, and a new card reaches new memory."""
    refused = []
    attempts: dict[str, Callable[[], None]] = {
        "release_physical": pair.target_memory.release_physical,
        "close": pair.target_memory.close,
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except LeaseError as error:
            refused.append([name, list(error.owners)])
    before = pair.write(88)
    pair.target_memory.release_physical(revoke=True)
    asleep = pair.attempt(89)
    pair.target_memory.restore()
    pair.there.restore()
    pair.meet()
    after = pair.write(99)
    owners = [pair.target.name]
    return {
        "refused": refused,
        "before": before,
        "asleep": asleep,
        "after_reconnecting": after,
        "ok": refused == [[name, owners] for name in attempts]
        and (before, after) == (("done", SIZE), ("done", SIZE))
        and asleep != "done",
    }


def run(connect: Callable[[], TransferConnector]) -> int:
    """Every case with a pair of its own; one line of JSON."""
    results: dict[str, dict[str, object]] = {}
    for case in (moves, guarded, stale):
        with ExitStack() as stack:
            results[case.__name__] = case(Pair(connect, stack))
    print("RESULT", json.dumps(results))
    return 0 if all(result["ok"] for result in results.values()) else 1
