"""An address-space map as data: what is published, printed and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, Self

from vmmcache.errors import SharingError

__all__ = ["AddressMap", "Busy", "Kind", "LeaseMap", "TensorMap"]

SCHEMA: Final = 1

Kind = Literal["tensor", "shared", "dropped"]
"""A tensor of this process; memory of another process that is mapped here; what views keep of a tensor that is gone."""


@dataclass(frozen=True, slots=True)
class LeaseMap:
    """Leased bytes."""

    offset: int
    """From the tensor's base."""
    nbytes: int
    owner: str


@dataclass(frozen=True, slots=True)
class Busy:
    """An operation that had not ended when somebody looked; the rest is of before it began."""

    operation: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TensorMap:
    """One reservation, and what is behind it. Offsets are bytes from `base`."""

    kind: Kind
    device: str
    state: str
    base: int
    reserved: int
    """Bytes of addresses."""
    granule: int
    generation: int
    owed: int
    """Bytes that the driver refused to take back."""
    segments: tuple[tuple[int, int], ...]
    """Size and committed bytes of each, by address; none where nobody knows them any more."""
    allocations: tuple[tuple[int, int], ...]
    """Offset and size of each that is mapped, by address."""
    leases: tuple[LeaseMap, ...]
    busy: Busy | None = None

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each segment begins."""
        return tuple(accumulate((size for size, _ in self.segments), initial=0))[:-1]

    @property
    def committed(self) -> int:
        """Visible bytes."""
        return sum(committed for _, committed in self.segments)

    @property
    def mapped(self) -> int:
        """Bytes of mapped allocations."""
        return sum(nbytes for _, nbytes in self.allocations)

    @property
    def leased(self) -> int:
        """Bytes that are leased, each counted once."""
        total = reached = 0
        for lease in sorted(self.leases, key=lambda lease: lease.offset):
            stop = lease.offset + lease.nbytes
            total += max(0, stop - max(reached, lease.offset))
            reached = max(reached, stop)
        return total

    def to_dict(self) -> dict[str, Any]:
        """As the JSON schema ``map`` says."""
        owners = list(dict.fromkeys(lease.owner for lease in self.leases))
        places = {owner: place for place, owner in enumerate(owners)}
        return {
            "kind": self.kind,
            "device": self.device,
            "state": self.state,
            "base": self.base,
            "granule": self.granule,
            "generation": self.generation,
            "reserved_bytes": self.reserved,
            "committed_bytes": self.committed,
            "mapped_bytes": self.mapped,
            "leased_bytes": self.leased,
            "owed_bytes": self.owed,
            "segments": [list(segment) for segment in self.segments],
            "allocations": [list(allocation) for allocation in self.allocations],
            "owners": owners,
            "leases": [[lease.offset, lease.nbytes, places[lease.owner]] for lease in self.leases],
            "busy": None if self.busy is None else asdict(self.busy),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. KeyError, TypeError, ValueError or IndexError where it is none."""
        busy = data["busy"]
        found = cls(
            kind=_word(data["kind"], ("tensor", "shared", "dropped")),
            device=_text(data["device"]),
            state=_text(data["state"]),
            base=_number(data["base"]),
            reserved=_number(data["reserved_bytes"]),
            granule=_number(data["granule"]),
            generation=_number(data["generation"]),
            owed=_number(data["owed_bytes"]),
            segments=tuple((_number(size), _number(committed)) for size, committed in data["segments"]),
            allocations=tuple((_number(offset), _number(nbytes)) for offset, nbytes in data["allocations"]),
            leases=tuple(
                LeaseMap(_number(offset), _number(nbytes), _text(data["owners"][_number(place)]))
                for offset, nbytes, place in data["leases"]
            ),
            busy=None if busy is None else Busy(_text(busy["operation"]), float(busy["seconds"])),
        )
        ends = [(offset, offset + nbytes) for offset, nbytes in found.allocations]
        overlap = any(stop > start for (_, stop), (start, _) in pairwise(ends))
        if overlap or any(stop > found.reserved for _, stop in ends):
            raise ValueError("allocations that overlap, or end past the reservation")
        if any(committed > size for size, committed in found.segments):
            raise ValueError("a segment with more committed than it has")
        return found


@dataclass(frozen=True, slots=True)
class AddressMap:
    """All reservations of a process."""

    pid: int
    started: int
    """When the process began, in clock ticks of the system: tells it from a later one of the same number."""
    time: float
    """Unix time at which this was so."""
    tensors: tuple[TensorMap, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the JSON schema ``map`` says."""
        return {
            "schema": SCHEMA,
            "pid": self.pid,
            "started": self.started,
            "time": self.time,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }

    @classmethod
    def from_dict(cls, data: Any, peer: str) -> Self:
        """The inverse of `to_dict`. SharingError where it is none; `peer` says whose."""
        try:
            if data["schema"] != SCHEMA:
                raise SharingError(
                    f"wrote version {data['schema']!r} of its map, and this is version {SCHEMA}",
                    peer=peer,
                    cure="Look with the version of vmmcache that the process uses",
                )
            return cls(
                pid=_number(data["pid"]),
                started=_number(data["started"]),
                time=float(data["time"]),
                tensors=tuple(TensorMap.from_dict(tensor) for tensor in data["tensors"]),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SharingError(f"wrote a file that is no map: {type(error).__name__}: {error}", peer=peer) from error


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _word(value: Any, words: tuple[Kind, ...]) -> Kind:
    for word in words:
        if word == value:
            return word
    raise ValueError(f"{value!r} is none of {', '.join(words)}")
