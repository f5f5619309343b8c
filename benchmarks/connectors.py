"""What registering costs before a library is called, and what the adapters add to a transfer (C1, C3, C6).

Transfers go to another process on this machine, over TCP on loopback. The bare library is called with the agent, the
memory and the peer of the adapter, in turns with it: what differs is the adapter alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from benchmarks.harness import Row, best_in_turns, run, seconds
from tests.peers import GRANULE, LOOPBACK, Peer
from vmmcache import (
    Connector,
    ConnectorUnavailable,
    ExtensibleTensor,
    RegistrableSegment,
    Registration,
    RegistrationLease,
    RegistrationSet,
    RemoteMemory,
    TransferConnector,
    open_connector,
)
from vmmcache.connectors.transfer import NAP_S, SPIN_S
from vmmcache.units import KIB, MIB

COUNT: Final = 10_000
SET_MS: Final = 60.0
LEASE_US: Final = 5.0
ABOVE: Final = 1.05
ROUNDS: Final = 40
SHAPES: Final = {"16 MiB at once": (1, 16 * MIB), "1,024 blocks of 16 KiB": (1024, 16 * KIB)}


class Book(Connector):
    """No library: what is left is ours."""

    name = "book"

    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        yield from segments

    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        yield from segments


def measure() -> Sequence[Row]:
    return [*_registering(), *_transfers("nixl"), *_transfers("mooncake")]


def _registering() -> Iterator[Row]:
    os.environ["VMMCACHE_HOST_MEMORY"] = "64GiB"
    with ExtensibleTensor(COUNT * GRANULE, segments=COUNT) as tensor:
        tensor.commit(1)
        leases: list[RegistrationLease] = []
        figures: dict[str, list[float]] = {"set": [], "lease": [], "release": []}
        for _ in range(10):
            figures["set"].append(seconds(lambda: RegistrationSet.of(tensor, strides=1)))
            figures["lease"].append(seconds(lambda: leases.extend(tensor.lease(i, "book") for i in range(COUNT))))
            figures["release"].append(seconds(lambda: release_all(leases)))
            leases.clear()
        set_ms = min(figures["set"]) * 1e3
        target = f"<= {SET_MS:g} ms"
        name = f"registration set of {COUNT:,} segments"
        yield Row(name, set_ms, "ms", judged=set_ms, target=target, held=set_ms <= SET_MS)
        for name in ("lease", "release"):
            us = min(figures[name]) / COUNT * 1e6
            yield Row(f"{name}, of {COUNT:,}", us, "us", judged=us, target=f"<= {LEASE_US:g} us", held=us <= LEASE_US)
        registration = Registration(tensor, Book(), strides=1)
        for name, work in (("release", registration.release), ("restore", registration.restore)):
            what = f"{name} of a registration of {COUNT:,} segments, without a library"
            yield Row(what, seconds(work) * 1e3, "ms")
        registration.close()


def release_all(leases: Sequence[RegistrationLease]) -> None:
    for lease in leases:
        lease.release()


def _transfers(name: str) -> Iterator[Row]:
    os.environ.update(LOOPBACK)
    try:
        connector = open_connector(name)
    except ConnectorUnavailable as error:
        yield Row(f"{name} is not here: {error.reason}", 0.0, "s")
        return
    assert isinstance(connector, TransferConnector)
    with Peer(name) as peer, ExtensibleTensor(16 * GRANULE) as tensor:
        peer.ready()
        peer.commit(16, 0)
        peer.register()
        tensor.commit(16 * GRANULE)
        with Registration(tensor, connector) as registration:
            remote = connector.connect(peer.card())
            for what, (count, nbytes) in SHAPES.items():
                copies = [
                    (registration.address(0, place * nbytes, nbytes), remote.address(0, place * nbytes, nbytes), nbytes)
                    for place in range(count)
                ]

                adapter = partial(_by_adapter, connector, remote, copies)
                bare = BARE[name](connector, remote.agent, copies)
                figures = best_in_turns({"adapter": partial(seconds, adapter), "bare": partial(seconds, bare)}, ROUNDS)
                ratio = figures["adapter"] / figures["bare"]
                yield Row(
                    f"{name}, write of {what}",
                    figures["adapter"] * 1e3,
                    "ms",
                    "the bare library",
                    figures["bare"] * 1e3,
                    judged=ratio,
                    target=f"<= {ABOVE:g} of it",
                    held=ratio <= ABOVE,
                )
    connector.close()


def _by_adapter(connector: TransferConnector, remote: RemoteMemory, copies: Sequence[tuple[int, int, int]]) -> None:
    connector.write(remote, copies).wait()


def _bare_nixl(connector: Any, peer: str, copies: Sequence[tuple[int, int, int]]) -> Callable[[], None]:
    agent = connector._agent

    def write() -> None:
        here = agent.get_xfer_descs([(local, nbytes, 0) for local, _, nbytes in copies], "DRAM")
        there = agent.get_xfer_descs([(far, nbytes, 0) for _, far, nbytes in copies], "DRAM")
        handle = agent.initialize_xfer("WRITE", here, there, peer, b"", ["UCX"])
        state = agent.transfer(handle)
        start = time.monotonic()
        while state == "PROC":
            # As the adapter waits: one who looks all the time takes the processor from those who copy.
            time.sleep(0 if time.monotonic() - start < SPIN_S else NAP_S)
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        assert state == "DONE"

    return write


def _bare_mooncake(connector: Any, peer: str, copies: Sequence[tuple[int, int, int]]) -> Callable[[], None]:
    engine = connector._engine

    def write() -> None:
        local, far, nbytes = (list(each) for each in zip(*copies, strict=True))
        assert engine.batch_transfer_sync_write(peer, local, far, nbytes) == 0

    return write


BARE: Final = {"nixl": _bare_nixl, "mooncake": _bare_mooncake}


if __name__ == "__main__":
    sys.exit(run("Connectors", measure))
