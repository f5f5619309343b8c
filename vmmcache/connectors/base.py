"""Connector: what a plug-in writes so that a transfer library can register memory of vmmcache.

A connector keeps a book of what its library has registered. Callers use the public verbs, which check first and keep
the book; a plug-in writes the underscored ones, which only speak to the library. They *yield* each entry when it is
done, so that after a failure in the middle the book says what is registered and what is not, and every verb can be
called again.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final

from vmmcache.closing import ClosedOnExit
from vmmcache.connectors.extents import Extent, Extents
from vmmcache.connectors.needs import ConnectorNeeds
from vmmcache.connectors.strange import by_address, calling, check_descriptors, check_overlap, check_told
from vmmcache.errors import StateError, VmmCacheError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.undo import UndoStack

__all__ = ["Connector"]


class Connector(ClosedOnExit):
    """One library's agent in this process. Methods may be called from any thread.

    Attributes
    ----------
    name : str
        As in `ConnectorSpec`; leases are taken in it.
    needs : ConnectorNeeds
    lock : threading.RLock
        Held by every verb. A transfer that is started under it is waited for by `quiesce`.
    epoch : int
        Rises whenever registrations are about to go. Who read addresses in an earlier epoch has to read them again.
    on_quiesce, on_invalidate : callable, optional
        The engine's part of what only the engine can do: stop the peers' transfers and wait for them; tell the peers
        that what they know is void. Called without arguments, the second one with `lock` held.
    """

    name: ClassVar[str]
    needs: ConnectorNeeds = ConnectorNeeds()

    def __init__(self) -> None:
        self.lock: Final = threading.RLock()
        self.epoch = 0
        self.on_quiesce: Callable[[], object] | None = None
        self.on_invalidate: Callable[[], object] | None = None
        self._registered: dict[int, RegistrableSegment] = {}
        self._extents: Extents | None = None
        self._closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self._registered)} registered>"

    @property
    def registered(self) -> tuple[RegistrableSegment, ...]:
        """What the library has registered, as far as it has told, by address."""
        with self.lock:
            return tuple(sorted(self._registered.values(), key=by_address))

    @property
    def extents(self) -> Extents:
        """Where what is registered is."""
        with self.lock:
            if self._extents is None:
                pieces = self._registered.values()
                self._extents = Extents(
                    (Extent(each.base, each.nbytes, each.segment_index, each.logical_offset) for each in pieces),
                    f"{self.name} of this process",
                )
            return self._extents

    # Verbs ----------------------------------------------------------------------------------------------------------

    def register(self, segments: Sequence[RegistrableSegment]) -> None:
        """Register all of `segments`, or none.

        Raises
        ------
        AlignmentError, ConfigError
            Something is not as `needs` says, or registered already, or given twice; the library has seen none of it.
        ConnectorError
            The library refused, with whatever error. What it had registered of these is deregistered again; where it
            refuses that too, a note says so, and `registered` what is left.
        """
        with self.lock:
            self._check("register")
            check_descriptors(self.name, segments)
            self.needs.check(segments, self.name, beside=tuple(self._registered.values()))
            check_overlap(self.name, self._registered.values(), segments)
            self._extents = None
            done: list[RegistrableSegment] = []
            with UndoStack() as undo:
                undo.push(lambda kind, error, trace: self._take_back(done, error))
                with calling(self.name, "register"):
                    for segment in self._register(segments):
                        self._registered[segment.base] = segment
                        done.append(segment)
                check_told(self.name, "_register", segments, done)
                undo.commit()

    def unregister(self, segments: Iterable[RegistrableSegment]) -> None:
        """Deregister those of `segments` that are registered; others are passed over, so a second time does nothing.

        Raises
        ------
        ConfigError
            Something is no descriptor.
        ConnectorError
            The library refused. `registered` says what is left; calling again goes on there.
        """
        with self.lock:
            self._check("unregister", closed=True)
            wanted = tuple(segments)
            check_descriptors(self.name, wanted)
            # By address: what is given twice is deregistered once.
            here = [*{each.base: each for each in wanted if self._registered.get(each.base) == each}.values()]
            if not here:
                return
            self._extents = None
            done = []
            with calling(self.name, "unregister"):
                for segment in self._unregister(here):
                    del self._registered[segment.base]
                    done.append(segment)
            check_told(self.name, "_unregister", here, done)

    def quiesce(self) -> None:
        """Let no transfer be on its way: the engine's by `on_quiesce`, then those that this side has started.

        Raises
        ------
        StateError
            A transfer does not end.
        ConnectorError
            The engine's callback raised, or the library.
        """
        self._check("quiesce", closed=True)
        if self.on_quiesce is not None:
            with calling(self.name, "on_quiesce"):
                self.on_quiesce()
        with self.lock:
            self._still()

    def invalidate_peers(self) -> None:
        """Begin a new epoch, and have the engine tell the peers by `on_invalidate`.

        Raises
        ------
        ConnectorError
            The engine's callback raised, or the library. The epoch has begun.
        """
        with self.lock:
            self._check("invalidate_peers", closed=True)
            self.epoch += 1
            with calling(self.name, "on_invalidate"):
                if self.on_invalidate is not None:
                    self.on_invalidate()
            with calling(self.name, "invalidate_peers"):
                self._invalidate_peers()

    def close_handles(self, segments: Sequence[RegistrableSegment]) -> None:
        """Close file descriptors that were exported for `segments`. They pin the memory as registrations do."""
        with self.lock, calling(self.name, "close_handles"):
            self._close_handles(segments)

    def withdraw(self, segments: Sequence[RegistrableSegment]) -> None:
        """All that has to happen before memory may go, in the order in which it is safe (C5).

        Raises
        ------
        StateError
            A transfer does not end. Nothing is deregistered.
        ConnectorError
            The library refused to deregister. `registered` says what is left; calling again goes on there.
        """
        self.quiesce()
        with self.lock:
            self._still()  # what was started since; while the lock is held, nothing starts
            self.invalidate_peers()
            self.unregister(segments)
            self.close_handles(segments)

    def close(self) -> None:
        """Give up the library's agent. The second time does nothing.

        Raises
        ------
        StateError
            Memory is still registered: close its `Registration` first.
        """
        with self.lock:
            if self._closed:
                return
            if self._registered:
                raise StateError(
                    f"{self!r} cannot be closed; close the Registrations of that memory first",
                    state="registered",
                    event="close",
                )
            if os.getpid() == self._pid:  # in a forked child the agent is the parent's
                with calling(self.name, "close"):
                    self._close()
            self._closed = True

    # What a plug-in writes ------------------------------------------------------------------------------------------

    @abstractmethod
    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        """Register, and yield each segment when it is registered. What was not yielded is taken for not registered."""

    @abstractmethod
    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        """Deregister, and yield each segment when it is not registered any more."""

    # In these there is nothing to do for most.

    def _quiesce(self) -> None:
        """Wait for transfers that this side has started, or StateError."""

    def _invalidate_peers(self) -> None:
        """Drop what the library knows of peers, where it has to."""

    def _close_handles(self, segments: Sequence[RegistrableSegment]) -> None:
        """Close what was exported for `segments`."""

    def _close(self) -> None:
        """Give up the agent; nothing is registered."""

    # ----------------------------------------------------------------------------------------------------------------

    def _check(self, event: str, *, closed: bool = False) -> None:
        if os.getpid() != self._pid:
            problem = "was opened before a fork, and its library does not live on in a child; open one there"
            raise StateError(f"{self!r} {problem}", state="forked", event=event)
        if self._closed and not closed:
            raise StateError(f"{self!r} is closed; open another", state="closed", event=event)

    def _still(self) -> None:
        with calling(self.name, "quiesce"):
            self._quiesce()

    def _take_back(self, done: Sequence[RegistrableSegment], error: BaseException | None) -> None:
        """Undo a registration that failed in the middle. What stays is in the book, and noted on the error."""
        try:
            self.unregister(done[::-1])
        except VmmCacheError as refusal:
            if error is not None:
                error.add_note(f"undoing failed too: {type(refusal).__name__}: {refusal}; release() tries again")
