"""Pieces of segments that are read, written or copied: checked, and made ranges of the region. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vmmcache.errors import ConfigError
from vmmcache.memory.ranges import Range
from vmmcache.memory.segments import Segments
from vmmcache.units import as_count

__all__ = ["Pieces"]


class Pieces:
    """Finds pieces among the committed bytes of segments.

    Parameters
    ----------
    segments : Segments
    committed : sequence of int
        Bytes that each of them has.
    """

    def __init__(self, segments: Segments, committed: Sequence[int]) -> None:
        self._segments = segments
        self._committed = committed

    def to_read(self, pieces: Iterable[object]) -> list[Range]:
        """Ranges of ``(segment, offset, nbytes)``."""
        return [self._range(number, *_fields(number, piece, 3)) for number, piece in enumerate(pieces)]

    def to_write(self, pieces: Iterable[object]) -> tuple[list[Range], list[bytes | bytearray]]:
        """Ranges and contents of ``(segment, offset, data)``."""
        ranges, contents = [], []
        for number, piece in enumerate(pieces):
            segment, offset, data = _fields(number, piece, 3)
            if not isinstance(data, bytes | bytearray):
                raise ConfigError(f"pieces[{number}]", type(data).__name__, "data must be bytes or bytearray")
            ranges.append(self._range(number, segment, offset, len(data)))
            contents.append(data)
        return ranges, contents

    def to_copy(self, pieces: Iterable[object]) -> Iterator[tuple[Range, Range]]:
        """Target and source ranges of ``(segment, target, source, nbytes)``."""
        for number, piece in enumerate(pieces):
            segment, target, source, nbytes = _fields(number, piece, 4)
            to, source_range = (
                self._range(number, segment, target, nbytes),
                self._range(number, segment, source, nbytes),
            )
            if to[0] < source_range[1] and source_range[0] < to[1]:
                raise ConfigError(f"pieces[{number}]", piece, "target and source overlap; copy them in two pieces")
            yield to, source_range

    def _range(self, number: int, segment: object, offset: object, nbytes: object) -> Range:
        index = self._segments.index(segment)
        there = self._committed[index]
        length = as_count(f"pieces[{number}], nbytes", nbytes, maximum=there)
        first = as_count(f"pieces[{number}], offset", offset, maximum=there - length)
        start = self._segments.offsets[index] + first
        return start, start + length


def _fields(number: int, piece: object, count: int) -> tuple[object, ...]:
    if not isinstance(piece, tuple) or len(piece) != count:
        raise ConfigError(f"pieces[{number}]", piece, f"must be a tuple of {count}")
    return piece
