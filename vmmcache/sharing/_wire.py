"""What travels between exporter and importer: frames of a head and a payload, both of them little-endian.

A frame is declared once, as a class; packing, unpacking, and the table of ``docs/sharing.md`` follow from that.
Whatever comes from the other side is checked here for form, and where it is used for sense.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple, get_args, get_type_hints

from vmmcache.errors import SharingError

__all__ = [
    "BATCH",
    "FRAMES",
    "HEAD",
    "MAX_IDS",
    "MAX_PAYLOAD",
    "VERSION",
    "Ack",
    "Entry",
    "Frame",
    "Hello",
    "Map",
    "Refused",
    "State",
    "Unmap",
    "Welcome",
    "pack",
    "parse_head",
    "unpack",
]

VERSION: Final = 1
MAGIC: Final = b"VMMS"
HEAD: Final = struct.Struct("<4sBBHI")
"""Magic, number of the frame, file descriptors beside it, 0, bytes of the payload."""
MAX_PAYLOAD: Final = 1 << 20
BATCH: Final = 16
"""Most descriptors of a frame. The kernel would take 253 (SCM_MAX_FD of Linux), but the receiver has to have room."""
MAX_IDS: Final = 4096
MAX_TEXT: Final = 2000

U8 = Annotated[int, "u8"]
U16 = Annotated[int, "u16"]
U32 = Annotated[int, "u32"]
U64 = Annotated[int, "u64"]
Text = Annotated[str, "text"]
Blob = Annotated[bytes, "bytes"]
U64s = Annotated[tuple[int, ...], "u64[]"]


class Entry(NamedTuple):
    """One allocation. Its descriptor, if it has one, travels beside the frame, in the order of the entries."""

    id: U64
    offset: U64
    nbytes: U64
    fabric: Blob
    """The fabric handle; empty where a descriptor travels."""


Entries = Annotated[tuple[Entry, ...], "entry[]"]


class Hello(NamedTuple):
    """Importer, first: the versions that it speaks, and whether it wants to write."""

    lowest: U16
    highest: U16
    writable: U8


class Welcome(NamedTuple):
    """Exporter: what there is to be shared."""

    version: U16
    device_type: Text
    granule: U64
    capacity: U64
    segments: U64s


class Refused(NamedTuple):
    """Either: why not. Number 0: the connection, which ends with it; else the question of that number."""

    number: U32
    reason: Text


class Map(NamedTuple):
    """Exporter: map these allocations. All of them, or none and `Refused`."""

    number: U32
    entries: Entries


class Unmap(NamedTuple):
    """Exporter: unmap these. With `asked` the memory is about to go, and the importer may refuse."""

    number: U32
    asked: U8
    ids: U64s


class State(NamedTuple):
    """Exporter: what is committed now, all of it mapped by what came before, and by which event."""

    number: U32
    event: Text
    generation: U64
    committed: U64s


class Ack(NamedTuple):
    """Importer: done."""

    number: U32


Frame = Hello | Welcome | Refused | Map | Unmap | State | Ack
FRAMES: Final[tuple[type[Any], ...]] = (Hello, Welcome, Refused, Map, Unmap, State, Ack)
"""A frame's number on the wire is its place here, from 1. Numbers are never used again for something else."""

_INTEGERS: Final = {"u8": struct.Struct("<B"), "u16": struct.Struct("<H"), "u32": struct.Struct("<I")}
_U64: Final = struct.Struct("<Q")


class Layout:
    """Fields and their kinds of one class, looked up once."""

    _known: ClassVar[dict[type[Any], tuple[tuple[str, str], ...]]] = {}

    @classmethod
    def of(cls, frame: type[Any]) -> tuple[tuple[str, str], ...]:
        """``(field, kind)`` of each field."""
        if frame not in cls._known:
            hints = get_type_hints(frame, include_extras=True)
            cls._known[frame] = tuple((name, get_args(hints[name])[1]) for name in frame._fields)
        return cls._known[frame]


def pack(frame: Frame, descriptors: int = 0) -> bytes:
    """Head and payload of a frame that goes with so many descriptors."""
    payload = _pack_fields(frame)
    if len(payload) > MAX_PAYLOAD or descriptors > BATCH:
        raise SharingError(f"a frame of {len(payload)} bytes with {descriptors} descriptors is too large", peer="here")
    return HEAD.pack(MAGIC, FRAMES.index(type(frame)) + 1, descriptors, 0, len(payload)) + payload


def parse_head(head: bytes, peer: str) -> tuple[type[Any], int, int]:
    """Class, descriptors and payload bytes that a head announces."""
    magic, number, descriptors, reserved, nbytes = HEAD.unpack(head)
    if magic != MAGIC:
        raise SharingError(f"sent {magic!r} where a frame begins with {MAGIC!r}", peer=peer)
    if not 1 <= number <= len(FRAMES) or reserved:
        raise SharingError(f"sent a frame of the unknown kind {number}, {reserved}", peer=peer)
    if nbytes > MAX_PAYLOAD:
        raise SharingError(f"announced {nbytes} bytes; a frame has at most {MAX_PAYLOAD}", peer=peer)
    if descriptors > BATCH:
        raise SharingError(f"announced {descriptors} descriptors; a frame has at most {BATCH}", peer=peer)
    return FRAMES[number - 1], descriptors, nbytes


def unpack(frame: type[Any], payload: bytes, peer: str) -> Frame:
    """The frame of a class from its payload, of exactly so many bytes."""
    reader = _Reader(payload, frame.__name__, peer)
    unpacked: Frame = reader.fields(frame)
    if reader.rest:
        raise reader.wrong(f"has {reader.rest} bytes too many")
    return unpacked


def _pack_fields(record: Any) -> bytes:
    return b"".join(_pack_one(kind, value) for (_, kind), value in zip(Layout.of(type(record)), record, strict=True))


def _pack_one(kind: str, value: Any) -> bytes:
    match kind:
        case "u64":
            return _U64.pack(value)
        case "text":
            # Cut by bytes; what is left of a character that was cut goes.
            data: bytes = value.encode()[:MAX_TEXT].decode(errors="ignore").encode()
            return _INTEGERS["u16"].pack(len(data)) + data
        case "bytes":
            return _INTEGERS["u16"].pack(len(value)) + bytes(value)
        case "u64[]":
            return _INTEGERS["u32"].pack(len(value)) + struct.pack(f"<{len(value)}Q", *value)
        case "entry[]":
            return _INTEGERS["u32"].pack(len(value)) + b"".join(map(_pack_fields, value))
    packed: bytes = _INTEGERS[kind].pack(value)
    return packed


class _Reader:
    def __init__(self, data: bytes, what: str, peer: str) -> None:
        self._data = data
        self._at = 0
        self._what = what
        self._peer = peer

    @property
    def rest(self) -> int:
        return len(self._data) - self._at

    def wrong(self, problem: str) -> SharingError:
        return SharingError(f"sent a {self._what} that {problem}", peer=self._peer)

    def fields(self, record: type[Any]) -> Any:
        return record(*[self._one(kind) for _, kind in Layout.of(record)])

    def _one(self, kind: str) -> Any:
        match kind:
            case "u64":
                return self._integer(_U64)
            case "text":
                try:
                    return self._take(self._integer(_INTEGERS["u16"])).decode()
                except UnicodeDecodeError:
                    raise self.wrong("has text that is not UTF-8") from None
            case "bytes":
                return self._take(self._integer(_INTEGERS["u16"]))
            case "u64[]":
                count = self._integer(_INTEGERS["u32"])
                return struct.unpack(f"<{count}Q", self._take(8 * count)) if count else ()
            case "entry[]":
                return self._entries(self._integer(_INTEGERS["u32"]))
        return self._integer(_INTEGERS[kind])

    def _entries(self, count: int) -> tuple[Entry, ...]:
        if count > BATCH:
            raise self.wrong(f"has {count} entries; at most {BATCH} go together")
        return tuple(self.fields(Entry) for _ in range(count))

    def _integer(self, form: struct.Struct) -> int:
        (value,) = form.unpack(self._take(form.size))
        return int(value)

    def _take(self, nbytes: int) -> bytes:
        if nbytes > self.rest:
            raise self.wrong(f"ends {nbytes - self.rest} bytes too early")
        piece = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return piece


def table() -> Sequence[tuple[int, str, str, str]]:
    """Number, name, fields and meaning of every frame: what ``docs/sharing.md`` shows."""
    rows = [(number, frame) for number, frame in enumerate(FRAMES, 1)]
    return [
        (
            number,
            frame.__name__,
            ", ".join(f"{name}: {kind}" for name, kind in Layout.of(frame)),
            " ".join((frame.__doc__ or "").split()),
        )
        for number, frame in rows
    ]
