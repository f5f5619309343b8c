"""What a process tells its peers so that they can reach its memory: a card, and what a peer makes of it.

How a card travels is the engine's business: it is bytes. It says nothing secret, but who has it can read and write the
memory, as far as the transport lets him.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from vmmcache.connectors.extents import Extent, Extents
from vmmcache.errors import ConfigError, StaleSegment

__all__ = ["Card", "RemoteMemory", "Version"]

_FORMAT: Final = 1
_WORD: Final = 1 << 64
"""Numbers of a card are addresses and sizes; a library takes no larger ones."""


class Version(NamedTuple):
    """Which agent, and which epoch of it."""

    incarnation: str
    """Made up when the agent was opened: one that was started again under its old name is another."""
    epoch: int


@dataclass(frozen=True, slots=True)
class Card:
    """Where one registered memory of an agent is, and what the library needs to reach it."""

    connector: str
    agent: str
    """The agent's name, unique among peers."""
    version: Version
    label: str
    """Which memory of that process."""
    partial: bool
    """Whether it only adds to a card of the same version."""
    metadata: bytes
    """The library's own; empty where it needs none."""
    mem_type: str
    device_id: int
    extents: tuple[Extent, ...]

    def to_bytes(self) -> bytes:
        """For the wire."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        fields["metadata"] = base64.b64encode(self.metadata).decode("ascii")
        return json.dumps({"vmmcache_card": _FORMAT, **fields}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """From the wire.

        Raises
        ------
        ConfigError
            It is no card, or one of another version of the format.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigError("card", data, "must be bytes, those of Card.to_bytes")
        data = bytes(data)
        try:
            fields = json.loads(data)
            if fields.pop("vmmcache_card") != _FORMAT:
                raise ConfigError(
                    "card", data[:40], f"not of format {_FORMAT}; use one version of vmmcache on all peers"
                )
            incarnation, epoch = fields.pop("version")
            card = cls(
                version=Version(_text(incarnation), _count(epoch)),
                metadata=base64.b64decode(_text(fields.pop("metadata")), validate=True),
                extents=tuple(Extent(*map(_count, extent)) for extent in fields.pop("extents")),
                partial=_truth(fields.pop("partial")),
                device_id=_count(fields.pop("device_id")),
                mem_type=_kind(fields.pop("mem_type")),
                **{name: _text(fields.pop(name)) for name in ("connector", "agent", "label")},
            )
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("card", data[:40], f"not a card: {type(error).__name__}: {error}") from error
        Extents(card.extents, f"the card of {card.agent}")  # disjoint and not empty, or ConfigError
        return card


class RemoteMemory:
    """A peer's memory, as its card described it. Made by ``connect``; valid until the peer's agent is dropped."""

    def __init__(self, card: Card) -> None:
        self.agent: Final = card.agent
        self.label: Final = card.label
        self.version: Final = card.version
        self.mem_type: Final = card.mem_type
        self.device_id: Final = card.device_id
        self.lost: str | None = None
        """Why it cannot be reached any more; None while it can."""
        self.extents = self._table(card.extents)

    def __repr__(self) -> str:
        return f"<RemoteMemory {self.label!r} of {self.agent}, {len(self.extents)} pieces, {self.lost or 'connected'}>"

    def address(self, segment: int, offset: int, nbytes: int) -> int:
        """Address there of bytes that lie in one registration.

        Raises
        ------
        StaleSegment
            The peer was dropped, or is gone.
        ConfigError, AlignmentError
            Not all of them are registered, or not in one piece.
        """
        self.require_valid()
        return self.extents.address(segment, offset, nbytes)

    def require_valid(self, version: Sequence[str | int] | None = None) -> None:
        """StaleSegment where the peer cannot be reached any more, or where it is not as it was at `version`.

        Who tells peers which of its blocks to read sends `TransferConnector.version` along: in a later epoch there may
        be something else at those places.
        """
        if version is not None and tuple(version) != self.version:
            raise StaleSegment(
                f"{self.label!r} of {self.agent} is in epoch {self.version.epoch} of {self.version.incarnation}, and "
                f"this is of {tuple(version)}; ask the peer where it is now",
                owners=(self.agent,),
            )
        if self.lost is not None:
            raise StaleSegment(
                f"{self.label!r} of {self.agent} is not to be reached: {self.lost}. Connect with a new card of it",
                owners=(self.agent,),
            )

    def together(self, card: Card) -> Extents:
        """Where it is by another card of the same version, of more of the memory, or of all of it.

        Raises
        ------
        ConfigError
            The card overlaps what those before have said.
        """
        return self._table((*self.extents, *card.extents) if card.partial else card.extents)

    def _table(self, extents: Iterable[Extent]) -> Extents:
        # The same piece may come twice: in a partial card, and in a full one that was made before.
        return Extents(set(extents), f"{self.label!r} of {self.agent}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _WORD:
        raise TypeError(f"{value!r} is no count that can be")
    return value


def _truth(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _kind(value: object) -> str:
    if value not in ("DRAM", "VRAM"):
        raise TypeError(f"{value!r} is no kind of memory")
    return str(value)
