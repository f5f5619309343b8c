"""Connectors that move bytes: what stands between an engine's transfer and a library that would believe anything.

A library takes addresses as they are. NIXL's TCP transport copies into a hole and ends the *target's* process; a stale
address writes into pages that nobody sees. So every transfer is checked against what is registered here, and against
the peer's card, before the library hears of it.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from vmmcache.connectors.base import Connector
from vmmcache.connectors.cards import Card, RemoteMemory, Version
from vmmcache.connectors.extents import Extent
from vmmcache.connectors.registration import Registration
from vmmcache.connectors.transfer import NAP_S, Operation, Transfer
from vmmcache.errors import ConfigError, ConnectorError, StaleSegment, StateError
from vmmcache.memory.descriptors import RegistrableSegment

__all__ = ["TransferConnector"]


class TransferConnector(Connector):
    """A connector with peers.

    Attributes
    ----------
    agent : str
        This agent's name among its peers.
    patience_s : float
        How long `quiesce` waits for transfers that this side has started.
    """

    def __init__(self, agent: str, patience_s: float) -> None:
        super().__init__()
        if type(agent) is not str or not agent:
            raise ConfigError("agent", agent, "must be a name, unique among peers")
        if type(patience_s) not in (int, float) or not patience_s >= 0:
            raise ConfigError("patience_s", patience_s, "must be a number of seconds")
        self.agent: Final = agent
        self.patience_s: Final = float(patience_s)
        self._incarnation = secrets.token_hex(8)
        self._peers: dict[str, list[RemoteMemory]] = {}
        self._running: set[Transfer] = set()

    # Peers ----------------------------------------------------------------------------------------------------------

    def card(self, registration: Registration, parts: Sequence[RegistrableSegment] | None = None) -> Card:
        """What peers need to reach a registered memory.

        Parameters
        ----------
        registration : Registration
            One of this connector.
        parts : sequence of RegistrableSegment, optional
            Only these, for peers that know the rest: what `Registration.refresh` returned. All by default.

        Raises
        ------
        StateError
            Nothing is registered, or not with this connector.
        """
        with self.lock:
            self._check("card")
            if registration.connector is not self or registration.state != "registered":
                raise StateError(f"{registration!r} has no card of {self!r}", state=registration.state, event="card")
            shown = registration.parts[:] if parts is None else tuple(parts)
            for each in shown:
                if self._registered.get(each.base) != each:
                    raise StateError(f"{each} is not registered with {self!r}", state="released", event="card")
            return Card(
                connector=self.name,
                agent=self.agent,
                version=self.version,
                label=registration.label,
                partial=parts is not None,
                metadata=self._metadata(None if parts is None else shown),
                mem_type=shown[0].mem_type if shown else "DRAM",
                device_id=shown[0].device_id if shown else 0,
                extents=tuple(
                    Extent(each.base, each.nbytes, each.segment_index, each.logical_offset) for each in shown
                ),
            )

    def connect(self, card: Card | bytes) -> RemoteMemory:
        """Take in a peer's card. A peer that is known in another version is dropped first, with all its memories.

        Raises
        ------
        ConfigError
            It is no card, or one of another connector, or of this very agent.
        StaleSegment
            The peer has told of a later epoch already.
        StateError
            The card is partial, and the peer is not known in that version.
        ConnectorError
            The library refused. The peer is not connected.
        """
        if not isinstance(card, Card):
            card = Card.from_bytes(card)
        if card.connector != self.name or card.agent == self.agent:
            raise ConfigError("card", card.agent, f"a card of {card.connector}; this is {self.agent} of {self.name}")
        with self.lock:
            self._check("connect")
            known = self._peers.get(card.agent, [])
            if known and known[0].version != card.version:
                if known[0].version.incarnation == card.version.incarnation and known[0].version > card.version:
                    raise StaleSegment(
                        f"the card of {card.agent} is of epoch {card.version.epoch}, and the peer has told of epoch "
                        f"{known[0].version.epoch} already; use its latest card",
                        owners=(card.agent,),
                    )
                self.disconnect(card.agent, f"it has begun epoch {card.version.epoch}")
                known = []
            there = next((each for each in known if each.label == card.label), None)
            if card.partial and there is None:
                raise StateError(
                    f"a partial card of {card.agent} adds to nothing; ask the peer for its whole card",
                    state="unknown",
                    event="connect",
                )
            self._connect(card)
            if there is None:
                there = RemoteMemory(card)
                self._peers.setdefault(card.agent, []).append(there)
            else:
                there.update(card)
            return there

    def disconnect(self, agent: str, why: str = "it was disconnected") -> None:
        """Drop a peer: its memories are lost to this side until `connect`. The second time does nothing."""
        with self.lock:
            if memories := self._peers.pop(agent, []):
                for memory in memories:
                    memory.lost = why
                self._disconnect(agent)

    @property
    def version(self) -> Version:
        """What cards that are made now say; see `RemoteMemory.require_valid`."""
        with self.lock:
            return Version(self._incarnation, self.epoch)

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers that are connected."""
        with self.lock:
            return tuple(self._peers)

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
            Bytes are not registered, here or there, or lie in two registrations. The library has not heard of it.
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
            remote.require_valid()
            for side, known in ((0, self.extents), (1, remote.extents)):
                if (outside := known.first_outside((copy[side], copy[2]) for copy in wanted)) is not None:
                    known.require(*outside)
            try:
                transfer = self._start(operation, remote, wanted, message)
            except ConnectorError as error:
                self._lose(remote, error)
                raise
            self._running.add(transfer)
            return transfer

    def _look(self, transfer: Transfer) -> None:
        """Ask the library how a transfer is doing. Under the lock."""
        try:
            if not transfer._poll():
                return
        except ConnectorError as error:
            transfer._error = error
        transfer._ended = True
        self._running.discard(transfer)
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

    def _close(self) -> None:
        for agent in tuple(self._peers):
            self.disconnect(agent, "this side has closed its agent")

    # What a library adds --------------------------------------------------------------------------------------------

    @abstractmethod
    def _metadata(self, parts: Sequence[RegistrableSegment] | None) -> bytes:
        """The library's metadata, of everything or of `parts` alone."""

    @abstractmethod
    def _connect(self, card: Card) -> None:
        """Make the peer of a card, or more of it, known to the library."""

    @abstractmethod
    def _disconnect(self, agent: str) -> None:
        """Make the library forget the peer; it may have done so by itself."""

    @abstractmethod
    def _start(
        self, operation: Operation, remote: RemoteMemory, copies: Sequence[tuple[int, int, int]], message: bytes
    ) -> Transfer:
        """Start a transfer whose addresses have been checked."""
