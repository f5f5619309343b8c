"""Who is connected to a server: counted, described, and asked all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from vmmcache.errors import LeaseError
from vmmcache.memory.undo import UndoStack
from vmmcache.sharing._releases import Request
from vmmcache.sharing._session import Session

__all__ = ["Importer", "Importers"]


class Importer(NamedTuple):
    """A process that maps the tensor."""

    pid: int
    uid: int
    allocations: int
    """How many it maps now."""
    nbytes: int
    """Bytes of those."""
    problem: str | None
    """Why it could not follow the last change; None where it has."""


class Importers:
    """The sessions of one server, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: list[Session] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        """One more."""
        with self._lock:
            self._sessions.append(session)

    def forget(self, session: Session) -> None:
        """One less. The second time does nothing."""
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)

    def now(self) -> tuple[Session, ...]:
        """Those that there are at the moment."""
        with self._lock:
            return tuple(self._sessions)

    def described(self) -> tuple[Importer, ...]:
        """What each maps."""
        return tuple(
            Importer(
                session.credentials.pid,
                session.credentials.uid,
                len(held := session.held),
                sum(piece.allocation_nbytes for piece in held),
                session.problem,
            )
            for session in self.now()
        )

    def changed(self, event: str) -> None:
        """Tell all of them that the tensor has changed."""
        for session in self.now():
            session.changed(event)

    def vacate(self, path: str, timeout_s: float, *, revoke: bool) -> None:
        """See `TensorServer.vacate`."""
        deadline = time.monotonic() + timeout_s
        late: dict[Session, str] = {}
        with UndoStack() as undo:  # also at an interrupt: nobody waits any more
            asked = [(session, session.ask(Request())) for session in self.now()]
            undo.callback(_withdraw, asked)
            for session, request in asked:
                if not request.wait(deadline - time.monotonic()):
                    late[session] = "no answer in time"
                elif request.refusal is not None:
                    late[session] = request.refusal
            if late and not revoke:
                names = ", ".join(f"{session.name} ({why})" for session, why in late.items())
                raise LeaseError(
                    f"{path}: {names} did not unmap; end it, or pass revoke=True to go on without its memory",
                    owners=tuple(session.name for session in late),
                )
            undo.commit()
        for session, why in late.items():
            session.cut(why)

    def dismiss(self, timeout_s: float) -> None:
        """Tell all that it is over, and wait until each has gone; cut off those that do not."""
        sessions = self.now()
        for session in sessions:
            session.changed("closed")
        deadline = time.monotonic() + timeout_s
        for session in sessions:
            if not session.join(deadline - time.monotonic()):
                session.cut("it did not say goodbye")
                session.join(timeout_s)


def _withdraw(asked: Iterable[tuple[Session, Request]]) -> None:
    for session, request in asked:
        session.withdraw(request)
