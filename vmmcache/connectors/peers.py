"""Connectors with peers: what a process tells of its memory, and what it knows of theirs."""

from __future__ import annotations

import secrets
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from vmmcache.connectors.base import Connector
from vmmcache.connectors.cards import Card, RemoteMemory, Version
from vmmcache.connectors.extents import Extent
from vmmcache.connectors.registration import Registration
from vmmcache.connectors.strange import calling
from vmmcache.errors import ConfigError, StaleSegment, StateError
from vmmcache.memory.descriptors import RegistrableSegment

__all__ = ["PeerConnector"]


class PeerConnector(Connector):
    """A connector whose agents know one another.

    Attributes
    ----------
    agent : str
        This agent's name among its peers.
    """

    def __init__(self, agent: str) -> None:
        super().__init__()
        if type(agent) is not str or not agent:
            raise ConfigError("agent", agent, "must be a name, unique among peers")
        self.agent: Final = agent
        self._incarnation = secrets.token_hex(8)
        self._labels: weakref.WeakValueDictionary[str, Registration] = weakref.WeakValueDictionary()
        self._peers: dict[str, list[RemoteMemory]] = {}

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
        ConfigError
            Peers know another memory of this process by that label.
        """
        with self.lock:
            self._check("card")
            if registration.connector is not self or registration.state != "registered":
                raise StateError(f"{registration!r} has no card of {self!r}", state=registration.state, event="card")
            self._check_label(registration)
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
            # Before the library hears of it: a card that does not fit to those before changes nothing.
            extents = there.together(card) if there is not None else None
            with calling(self.name, "connect"):
                self._connect(card)
            if there is None:
                there = RemoteMemory(card)
                self._peers.setdefault(card.agent, []).append(there)
            elif extents is not None:
                there.extents = extents
            return there

    def disconnect(self, agent: str, why: str = "it was disconnected") -> None:
        """Drop a peer: its memories are lost to this side until `connect`. The second time does nothing."""
        with self.lock:
            if memories := self._peers.pop(agent, []):
                for memory in memories:
                    memory.lost = why
                with calling(self.name, "disconnect"):
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

    def _close(self) -> None:
        for agent in tuple(self._peers):
            self.disconnect(agent, "this side has closed its agent")

    def _check_label(self, registration: Registration) -> None:
        """Two memories of one label would be one to peers, and bytes would go into the wrong one."""
        other = self._labels.get(registration.label)
        if other is not None and other is not registration and other.state != "closed":
            raise ConfigError(
                "label",
                registration.label,
                f"peers know {other!r} by it; register one of the two with another label (a manager's is its tag)",
            )
        self._labels[registration.label] = registration

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
