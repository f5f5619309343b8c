"""The decode process's side of the connector: the peer's cards, and reads that go on while the engine decodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from disagg.blocks import BlockMap, Handoff, Move
from tinyllm.runner import Blocks
from tinyllm.scheduler import Session
from vmmcache import Card, Registration, RemoteMemory, StaleSegment, Transfer, TransferConnector

__all__ = ["Reader", "Reading", "Totals"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Blocks of one request that are on their way."""

    session: Session
    handoff: Handoff
    transfer: Transfer
    moves: list[Move]
    started: float


@dataclass(slots=True)
class Totals:
    """What was moved."""

    reads: int = 0
    pieces: int = 0
    bytes_moved: int = 0
    bytes_from_growth: int = 0
    """Of these, from memory that the peer has registered after its first card."""
    read_seconds: float = 0.0
    """Between the beginning of each read and the moment in which the engine noticed its end."""
    cards: int = 0
    partial_cards: int = 0
    reconnects: int = 0
    """Times that the peer was dropped and added again."""
    stale: int = 0
    """Reads that were refused because the peer had begun another epoch since it handed the blocks over."""


@dataclass(slots=True)
class Reader:
    """Reads blocks of a peer's cache into this process's.

    Parameters
    ----------
    registration
        Of this process's cache.
    blocks
        Where slots are.
    """

    registration: Registration
    blocks: BlockMap
    totals: Totals = field(default_factory=Totals)
    reading: list[Reading] = field(default_factory=list)
    _remote: RemoteMemory | None = None
    _grown: list[tuple[int, int, int]] = field(default_factory=list)
    """Segment, first byte and end of what came with partial cards."""

    @property
    def connector(self) -> TransferConnector:
        """The one that the manager has opened."""
        connector: Final = self.registration.connector
        assert isinstance(connector, TransferConnector)
        return connector

    @property
    def oldest_s(self) -> float:
        """For how long the read that was begun first has been on its way; 0 where there is none."""
        now = time.monotonic()
        return max((now - each.started for each in self.reading), default=0.0)

    def meet(self, card: Card) -> None:
        """Take in a card: the first one, more of the same memory, or that of a new epoch."""
        totals = self.totals
        totals.cards += 1
        if card.partial:
            totals.partial_cards += 1
            self._grown += [(each.segment, each.offset, each.offset + each.nbytes) for each in card.extents]
        elif self._remote is not None:
            totals.reconnects += 1
        self._remote = self.connector.connect(card)

    def forget(self) -> None:
        """Drop the peer: its addresses are void, or it is gone."""
        if self._remote is not None:
            self.connector.disconnect(self._remote.agent, "it said that its addresses are void")

    def begin(self, session: Session, handoff: Handoff, here: Blocks) -> None:
        """Start to read the blocks of a handoff into slots of this side.

        Raises
        ------
        StaleSegment
            They were there in another epoch of the peer.
        ConnectorError
            The library refused.
        """
        remote = self._remote
        assert remote is not None
        try:
            remote.require_valid(handoff.version)
        except StaleSegment:
            self.totals.stale += 1
            raise
        moves = list(self.blocks.moves(handoff.blocks, here))
        copies = [
            (
                self.registration.address(move.segment, move.here, move.nbytes),
                remote.address(move.segment, move.there, move.nbytes),
                move.nbytes,
            )
            for move in moves
        ]
        started = time.monotonic()
        self.reading.append(Reading(session, handoff, self.connector.read(remote, copies), moves, started))

    def finished(self, *, wait_s: float | None = None) -> Iterator[Reading]:
        """Give the reads that have ended; with `wait_s` all of them, each waited for so long.

        Raises
        ------
        ConnectorError
            One has failed.
        StateError
            One does not end.
        """
        for each in list(self.reading):
            if wait_s is not None or each.transfer.done:
                each.transfer.wait(wait_s)
                self.reading.remove(each)
                self._count(each)
                yield each

    def _count(self, read: Reading) -> None:
        totals = self.totals
        totals.reads += 1
        totals.read_seconds += time.monotonic() - read.started
        totals.pieces += len(read.moves)
        totals.bytes_moved += sum(move.nbytes for move in read.moves)
        totals.bytes_from_growth += sum(
            move.nbytes
            for move in read.moves
            if any(segment == move.segment and start <= move.there < end for segment, start, end in self._grown)
        )
