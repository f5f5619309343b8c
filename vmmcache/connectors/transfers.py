"""Connectors that move bytes: what stands between an engine's transfer and a library that would believe anything.

A library takes addresses as they are. NIXL's TCP transport copies into a hole and ends the *target's* process; a stale
address writes into pages that nobody sees. So every transfer is checked against what is registered here, and against
the peer's card, before the library hears of it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from operator import index
from typing import Final

from vmmcache.connectors.cards import RemoteMemory
from vmmcache.connectors.peers import PeerConnector
from vmmcache.connectors.strange import calling
from vmmcache.connectors.transfer import NAP_S, Operation, Transfer
from vmmcache.errors import ConfigError, ConnectorError, StateError

__all__ = ["TransferConnector"]


class TransferConnector(PeerConnector):
    """A connector that moves bytes from and to its peers' memory.

    Attributes
    ----------
    patience_s : float
        How long `quiesce` waits for transfers that this side has started.
    """

    def __init__(self, agent: str, patience_s: float) -> None:
        super().__init__(agent)
        if type(patience_s) not in (int, float) or not patience_s >= 0:
            raise ConfigError("patience_s", patience_s, "must be a number of seconds")
        self.patience_s: Final = float(patience_s)
        self._running: set[Transfer] = set()

    # Transfers ------------------------------------------------------------------------------------------------------

    def write(self, remote: RemoteMemory, copies: Iterable[tuple[int, int, int]], message: bytes = b"") -> Transfer:
        """Start to write local bytes to a peer.

        Parameters
        ----------
        remote : RemoteMemory
        copies : iterable of Copy
            Local address, remote address, bytes. Each side of each lies in one registration.
        message : bytes
            Given to the peer when the bytes are there, where the library can do that.

        Raises
        ------
        ConfigError, AlignmentError
            Bytes are not registered, here or there, or lie in two registrations, or `remote` is another connector's.
            The library has not heard of it.
        StaleSegment
            The peer was dropped, or is gone.
        ConnectorError
            The library refused.
        """
        return self._begin("WRITE", remote, copies, message)

    def read(self, remote: RemoteMemory, copies: Iterable[tuple[int, int, int]], message: bytes = b"") -> Transfer:
        """Start to read a peer's bytes; parameters and errors are those of `write`."""
        return self._begin("READ", remote, copies, message)

    def _begin(
        self, operation: Operation, remote: RemoteMemory, copies: Iterable[tuple[int, int, int]], message: bytes
    ) -> Transfer:
        wanted = [*copies]
        if not wanted:
            raise ConfigError("copies", wanted, "nothing to move")
        with self.lock:
            self._check(operation.lower())
            self._check_remote(remote)
            try:
                for side, known in ((0, self.extents), (1, remote.extents)):
                    if (outside := known.first_outside((copy[side], copy[2]) for copy in wanted)) is not None:
                        known.require(*outside)
            except (TypeError, IndexError):
                _check_form(wanted)
                raise
            try:
                with calling(self.name, operation.lower()):
                    transfer = self._start(operation, remote, wanted, message)
            except ConnectorError as error:
                _check_form(wanted)  # the caller's fault is none of the peer's
                self._lose(remote, error)
                raise
            self._running.add(transfer)
            return transfer

    def _check_remote(self, remote: RemoteMemory) -> None:
        if not isinstance(remote, RemoteMemory):
            raise ConfigError("remote", remote, "must be what connect() gave")
        remote.require_valid()
        if not any(each is remote for each in self._peers.get(remote.agent, ())):
            raise ConfigError("remote", remote, f"{self.agent} of {self.name} has not connected to it; connect() first")

    def _look(self, transfer: Transfer) -> None:
        """Ask the library how a transfer is doing. Under the lock."""
        try:
            with calling(self.name, transfer.operation.lower()):
                if not transfer._poll():
                    return
        except ConnectorError as error:
            transfer._error = error
        transfer._ended = True
        self._running.discard(transfer)
        with calling(self.name, "finish"):
            transfer._finish()
        if transfer._error is not None:
            self._lose(transfer.remote, transfer._error)

    def _lose(self, remote: RemoteMemory, error: ConnectorError) -> None:
        """Nobody knows what a failed transfer has left of the connection: it begins anew, with a new card."""
        if remote.lost is None:
            self.disconnect(remote.agent, f"a transfer failed: {error}")

    def _quiesce(self) -> None:
        deadline = time.monotonic() + self.patience_s
        for transfer in tuple(self._running):
            while not transfer.done:
                if time.monotonic() >= deadline:
                    raise StateError(
                        f"{transfer!r} has not ended within {self.patience_s:g} s, and nothing was deregistered. Try "
                        "again, or disconnect the peer",
                        state="running",
                        event="quiesce",
                    )
                time.sleep(NAP_S)

    # What a library adds --------------------------------------------------------------------------------------------

    @abstractmethod
    def _start(
        self, operation: Operation, remote: RemoteMemory, copies: Sequence[tuple[int, int, int]], message: bytes
    ) -> Transfer:
        """Start a transfer whose addresses have been checked."""


def _check_form(copies: Sequence[tuple[int, int, int]]) -> None:
    """ConfigError where something is no copy. Looked at when something is wrong already: there may be thousands."""
    for place, copy in enumerate(copies):
        try:
            local, far, nbytes = copy
            for number in local, far, nbytes:
                index(number)
        except (TypeError, ValueError) as error:
            problem = "must be local address, remote address and bytes, three whole numbers"
            raise ConfigError(f"copies[{place}]", copy, problem) from error
