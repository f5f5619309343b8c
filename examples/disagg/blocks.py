"""Where the blocks of a request are: as pieces of registered segments, which move, and as bytes, which are compared.

Both caches are block-major (the manager's default): a slot of a pool is one run of bytes, with the block of every layer
in it, so that a block of sixteen tokens moves in one piece and not in one for each layer. Slot counts of a cache that
has connectors end on granules in every segment, also after growth. So no slot lies in two registrations, and no library
is asked to move a piece that does.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Self

from torch import Tensor

from tinyllm.runner import Blocks
from tinyllm.shape import KINDS, Kind, ModelShape
from vmmcache import ConfigError, KVCacheManager

__all__ = ["BlockMap", "Handoff", "Move", "fingerprint"]


@dataclass(frozen=True, slots=True)
class Handoff:
    """A finished prompt: what the decode process is told of it."""

    number: int
    """The request's; the decode process knows the prompt."""
    token: int
    """The first token of the answer."""
    version: tuple[str, int]
    """Agent and epoch in which the blocks are there."""
    blocks: dict[Kind, list[int]]
    """Slots by ordinal; -1 for a block that has left the window."""
    sha256: str
    """Of the blocks' bytes, as the process that computed them sees them."""

    def to_fields(self) -> dict[str, Any]:
        """For a message."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """From a message."""
        number, token, version, blocks, sha256 = (fields[name] for name in cls.__slots__)
        return cls(number, token, tuple(version), blocks, sha256)


class Move(NamedTuple):
    """One piece of one block: where it is there and here, in bytes of the same segment of both caches."""

    segment: int
    there: int
    here: int
    nbytes: int


class BlockMap:
    """From slots to pieces of segments.

    Parameters
    ----------
    manager
        Either one: caches of one layout in one arrangement have the same segments, whatever their sizes.
    cycles
        Which life cycle of the layout each kind of layer keeps its blocks in.
    """

    def __init__(self, manager: KVCacheManager, cycles: Mapping[Kind, int]) -> None:
        pools = manager.pools
        self._strides: Final[dict[Kind, list[tuple[int, int]]]] = {
            kind: [
                (segment, pools.segments[segment].stride)
                for segment in pools.groups[pools.layout.life_cycles[cycles[kind]].group]
            ]
            for kind in KINDS
        }

    def moves(self, there: Blocks, here: Blocks) -> Iterator[Move]:
        """Pair the blocks of one request in two caches.

        Raises
        ------
        ConfigError
            A block is needed here and is not there.
        """
        for kind, strides in self._strides.items():
            if len(there[kind]) != len(here[kind]):
                raise ConfigError("blocks", kind, f"{len(there[kind])} blocks there, and {len(here[kind])} here")
            for ordinal, (source, target) in enumerate(zip(there[kind], here[kind], strict=True)):
                if target < 0:
                    continue
                if source < 0:
                    raise ConfigError("blocks", kind, f"block {ordinal} is needed here and has left the window there")
                for segment, stride in strides:
                    yield Move(segment, source * stride, target * stride, stride)


def fingerprint(views: Mapping[str, Mapping[str, Tensor]], shape: ModelShape, blocks: Blocks) -> str:
    """SHA-256 of a request's blocks, read through a process's own views, buffer by buffer.

    Which slot a block has does not enter; neither does anything that the connector was told.
    """
    hashed = hashlib.sha256()
    for layer, kind in enumerate(shape.layers):
        slots = [slot for slot in blocks[kind] if slot >= 0]
        for _, view in sorted(views[shape.name(layer)].items()):
            content = view[slots].cpu().contiguous()
            hashed.update(ctypes.string_at(content.data_ptr(), content.nbytes))
    return hashed.hexdigest()
