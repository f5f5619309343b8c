"""Bytes of committed segments, read and written through the driver: also where torch cannot open the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from vmmcache.errors import StateError
from vmmcache.memory.contents import Pieces
from vmmcache.memory.states import State
from vmmcache.memory.visible import VisibleSegments

__all__ = ["TouchableSegments"]


class TouchableSegments(VisibleSegments):
    """Segments whose committed bytes can be read, written and copied."""

    _WAKE: ClassVar[str] = "restore() first"
    """What helps where nothing is mapped."""

    def read(self, pieces: Iterable[tuple[int, int, int]]) -> list[bytearray]:
        """Copy committed bytes to host memory, also where torch cannot open the device; waits for the device.

        Parameters
        ----------
        pieces : iterable of tuple
            ``(segment, offset, nbytes)`` each, the offset counted from the first byte of the segment.

        Returns
        -------
        list of bytearray
            One for each piece.

        Raises
        ------
        ConfigError
            A piece is not within the committed bytes of its segment. Checked for all before the first is touched.
        StateError
            The tensor is asleep or closed.
        DriverError
            The driver refused.
        """
        with self._region.gate.operation("read"):
            return self._region.read(self._pieces("read").to_read(pieces))

    def write(self, pieces: Iterable[tuple[int, int, bytes | bytearray]]) -> None:
        """Copy host bytes to committed ones, one piece after the other; waits for the device before and after.

        Parameters
        ----------
        pieces : iterable of tuple
            ``(segment, offset, data)`` each.

        Raises
        ------
        ConfigError, StateError
            As for `read`.
        DriverError
            The driver refused; pieces before may be written.
        """
        with self._region.gate.operation("write"):
            self._region.write(*self._pieces("write").to_write(pieces))

    def copy(self, pieces: Iterable[tuple[int, int, int, int]]) -> None:
        """Copy committed bytes within segments, one piece after the other; waits for the device before and after.

        Parameters
        ----------
        pieces : iterable of tuple
            ``(segment, target, source, nbytes)`` each: offsets of the first bytes. The two must not overlap.

        Raises
        ------
        ConfigError, StateError
            As for `read`.
        DriverError
            The driver refused; pieces before may be copied.
        """
        with self._region.gate.operation("copy"):
            self._region.copy(list(self._pieces("copy").to_copy(pieces)))

    def _pieces(self, event: str) -> Pieces:
        if self._region.state in (State.ASLEEP, State.CLOSED):
            cure = self._WAKE if self._region.state is State.ASLEEP else "make a new one"
            raise StateError(f"{self!r} does not allow {event}(); {cure}", state=self.state, event=event)
        return Pieces(self._segments, self.committed)
