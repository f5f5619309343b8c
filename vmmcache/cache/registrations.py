"""The connectors of one manager: opened once, registered together or not at all, and out of the way while it sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from vmmcache.cache.backing import Backing
from vmmcache.cache.noting import noting
from vmmcache.connectors.base import Connector
from vmmcache.connectors.registration import Registration
from vmmcache.memory.undo import UndoStack
from vmmcache.plugins.connectors import open_connector

__all__ = ["Registrations"]


class Registrations:
    """Registrations of a cache's memory with each of its connectors.

    Parameters
    ----------
    wanted : sequence of str or Connector
        Names are opened here, at the first `register`, and closed by `close`. What was opened elsewhere stays open.
    backing : Backing
        Whose memory.
    label : str
        Which memory of this process it is, for peers.
    """

    def __init__(self, wanted: Sequence[str | Connector], backing: Backing, label: str) -> None:
        self._wanted: Final = tuple(wanted)
        self._backing: Final = backing
        self._label: Final = label
        self._opened: dict[str, Connector] = {}
        self._held: list[Registration] = []

    def __bool__(self) -> bool:
        return bool(self._wanted)

    @property
    def held(self) -> tuple[Registration, ...]:
        """One for each connector, in the order given; none before `register`."""
        return tuple(self._held)

    @property
    def segments(self) -> int:
        """How many descriptors are registered, with all connectors together."""
        return sum(len(each.parts) for each in self._held if each.state == "registered")

    @property
    def whole(self) -> bool:
        """Whether a connector takes segments only in one piece, so that growing means to register anew."""
        return any(each.connector.needs.whole_segments or each.connector.needs.single_storage for each in self._held)

    def register(self) -> None:
        """Register what is committed now, anew: with every connector, or with none.

        Raises
        ------
        ConnectorError, AlignmentError, ConfigError
            A connector cannot be opened, or not take this memory. No connector has registered anything.
        """
        self._drop()
        with UndoStack() as undo:
            for wanted in self._wanted:
                connector = self._connector(wanted)
                made = Registration(self._backing.memory, connector, strides=self._strides(), label=self._label)
                self._held.append(made)
                undo.push(noting(partial(self._take_back, made)))
            undo.commit()

    def refresh(self) -> None:
        """Register what growth has appended. Registrations of earlier connectors stay where a later one refuses."""
        for each in self._held:
            each.refresh()

    def release(self) -> None:
        """Deregister everywhere, so that the memory may go: quiesce, invalidate peers, deregister, close handles (C5).

        Raises
        ------
        ConnectorError, StateError
            A connector refused. The others have registered again.
        """
        with UndoStack() as undo:
            for each in self._held:
                if each.state not in ("released", "closed"):
                    each.release()
                    undo.push(noting(each.restore))
            undo.commit()

    def restore(self, *, moved: bool = False) -> None:
        """Register again after `release`: at the same addresses and lengths, or anew where the memory has `moved`.

        Raises
        ------
        StaleSegment
            The memory has come back otherwise than it went.
        ConnectorError
            A connector refused. All are released still, and a later call may succeed.
        """
        if moved:
            self.register()
            return
        with UndoStack() as undo:
            for each in self._held:
                if each.state == "released":
                    each.restore()
                    undo.push(noting(each.release))
            undo.commit()

    def close(self) -> None:
        """Deregister, and close the connectors that were opened here."""
        for each in self._held:
            each.close()
        self._held.clear()
        while self._opened:
            name = next(iter(self._opened))
            self._opened[name].close()
            del self._opened[name]

    def _drop(self) -> None:
        """Forget registrations that are released: the memory has changed, or is registered anew."""
        while self._held:
            self._held[-1].close()
            self._held.pop()

    def _connector(self, wanted: str | Connector) -> Connector:
        if isinstance(wanted, Connector):
            return wanted
        if (opened := self._opened.get(wanted)) is None:
            opened = self._opened[wanted] = open_connector(wanted)
        return opened

    def _strides(self) -> list[int]:
        return [segment.stride for segment in self._backing.pools.segments]

    def _take_back(self, made: Registration) -> None:
        made.close()
        self._held.remove(made)
