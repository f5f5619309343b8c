"""TensorServer: the exporter's side of a tensor that other processes see."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Collection
from typing import Final

from vmmcache.closing import ClosedOnExit
from vmmcache.connectors.leases import RegistrationLease
from vmmcache.driver import HandleType
from vmmcache.errors import ConfigError, LeaseError, SharingError
from vmmcache.memory.changes import Change
from vmmcache.memory.states import State
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.memory.undo import UndoStack
from vmmcache.sharing._channel import Channel
from vmmcache.sharing._door import Door
from vmmcache.sharing._importers import Importer, Importers
from vmmcache.sharing._peers import check_path, stranger
from vmmcache.sharing._releases import Release, Releases
from vmmcache.sharing._session import Session
from vmmcache.sharing._wire import MAX_PAYLOAD, Refused
from vmmcache.units import as_count

__all__ = ["Importer", "TensorServer"]

_log = logging.getLogger(__name__)


class TensorServer(ClosedOnExit):
    """Shares a tensor with other processes of this host, through a socket in the file system.

    Importers (`SharedTensor.connect`) map what is committed, and follow: growth is sent as it happens, each allocation
    once. While an importer maps bytes they are leased: release, sleep, shrink, defragment and close refuse with a
    LeaseError that names it, or, with ``revoke=True``, ask importers to let go and wait until they have. One that
    does not answer within `timeout_s` is cut off, and the operation goes on; one that refuses is a LeaseError.

    An importer that is cut off may still map the memory. Nothing breaks: it sees the old bytes, and the device gets
    them back when the last process that maps them is gone, and not before. `importers` says what each maps.

    Close it before the tensor is dropped: it holds the tensor.

    Parameters
    ----------
    tensor : ExtensibleTensor
    path : str or path-like
        Where the socket is to be; its folder has to exist. A socket that nobody listens at is replaced.
    uids : collection of int
        Users that may map the tensor beside our own. The mode has to let them in, too.
    mode : int
        Of the socket's file.
    kind : {"posix_fd", "fabric"}, optional
        Which handles to send; by default what the memory has, a descriptor first.
    timeout_s : float
        How long an importer may take to let go, or to say who it is.
    most : int
        Importers at one time.

    Raises
    ------
    ConfigError
        An argument is wrong; the path cannot be a socket, or somebody listens there.
    SharingError
        There is no descriptor or thread left for it.
    """

    def __init__(
        self,
        tensor: ExtensibleTensor,
        path: str | os.PathLike[str],
        *,
        uids: Collection[int] = (),
        mode: int = 0o600,
        kind: HandleType | None = None,
        timeout_s: float = 10.0,
        most: int = 64,
    ) -> None:
        self.path: Final = check_path(path)
        if not isinstance(tensor, ExtensibleTensor):
            raise ConfigError("tensor", tensor, "must be an ExtensibleTensor; importers cannot hand memory on")
        if 8 * len(tensor.segment_sizes) > MAX_PAYLOAD // 2:
            raise ConfigError("tensor", tensor, f"has {len(tensor.segment_sizes)} segments, too many for one frame")
        if kind not in (None, "posix_fd", "fabric"):
            raise ConfigError("kind", kind, "must be posix_fd, fabric, or None for what the memory has")
        self.tensor: Final = tensor
        self._uids = tuple(as_count("uids", uid, unit="(a user's number)") for uid in uids)
        self._kind = kind
        self._timeout_s = _seconds(timeout_s)
        self._most = as_count("most", most, minimum=1, unit="importers")
        self._releases = Releases()
        self._importers: Final = Importers()
        self._ending = threading.Lock()
        self._closing = False
        with contextlib.ExitStack() as undo:
            self._door = Door(self.path, as_count("mode", mode, maximum=0o777, unit="(of a file)"), self._let_in)
            undo.callback(self._door.close)
            self._end_observing = tensor.on_change(self._on_change)
            undo.callback(self._end_observing)
            self._door.open()
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<TensorServer at {self.path} of {self.tensor!r}, {len(self._importers)} importers>"

    @property
    def importers(self) -> tuple[Importer, ...]:
        """Who maps the tensor, in the order in which they came."""
        return self._importers.described()

    def vacate(self, timeout_s: float | None = None, *, revoke: bool = False) -> None:
        """Ask every importer to unmap all that it maps, and wait until it has. The tensor is free to go then.

        Importers stay connected, and are sent what there is after the tensor's next change.

        Parameters
        ----------
        timeout_s : float, optional
            The server's by default.
        revoke : bool
            Cut off those that refuse or are late; what they map does not come back before they end.

        Raises
        ------
        LeaseError
            Without `revoke`: names the importers that refused or were late, and says what each said. Those that did
            unmap map again.
        """
        self.tensor.driver.check_process("vacate")
        self._importers.vacate(self.path, self._timeout_s if timeout_s is None else timeout_s, revoke=revoke)

    def close(self, *, revoke: bool = False) -> None:
        """Let every importer go, and stop listening. The tensor stays. The second time does nothing.

        Raises
        ------
        LeaseError
            An importer did not unmap, and may not be cut off (`revoke`). The server goes on.
        """
        self.tensor.driver.check_process("close")
        with self._ending:
            with UndoStack() as undo:
                self._closing = True
                undo.callback(setattr, self, "_closing", False)
                self.vacate(revoke=revoke)
                undo.commit()
            self._end_observing()
            self._door.shut()
            self._importers.dismiss(self._timeout_s)
            self._door.close()

    # What happens to the tensor -------------------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        self._releases.heard(change)
        if change.event != "about_to_release":
            self._importers.changed(change.event)

    def _revoke(self, session: Session, lease: RegistrationLease) -> None:
        """An operation that may revoke wants bytes that an importer maps: all of them are asked, one is waited for."""
        # Nothing was announced: somebody sees that nothing at all is leased, before there is an operation.
        release = self._releases.mine or Release(None, None)
        if release.deadline is None:
            release.deadline = time.monotonic() + self._timeout_s
            for other in self._importers.now():
                release.request(other, other.ask)
        request = release.request(session, session.ask)
        if request.wait(release.deadline - time.monotonic()):
            if request.refusal is not None:
                raise LeaseError(f"{session.name} refuses: {request.refusal}", owners=(session.name,))
        else:
            session.cut(f"it did not unmap within {self._timeout_s} s")

    # Letting importers in -------------------------------------------------------------------------------------------

    def _let_in(self, sock: socket.socket) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            channel = Channel(sock, self._timeout_s)
            if (reason := stranger(channel.credentials, self._uids) or self._full()) is not None:
                # Before a byte of state, and before a byte of theirs is read.
                _log.warning("%s: %s is refused: %s", self.path, channel.peer, reason)
                with contextlib.suppress(SharingError):  # it did not wait for the reason
                    channel.send(Refused(0, reason))
                return
            session = Session(self.tensor, channel, self._releases, self._kind, self._revoke, self._importers.forget)
            undo.pop_all()
        self._importers.add(session)
        if self.tensor.state == State.CLOSED.value:
            session.changed("closed")  # it was closed since we looked, and that was told to those before
        session.start()

    def _full(self) -> str | None:
        if self._closing or self.tensor.state == State.CLOSED.value:
            return "the tensor is being closed"
        return f"there are {self._most} importers already" if len(self._importers) >= self._most else None


def _seconds(timeout_s: float) -> float:
    if type(timeout_s) not in (int, float) or not 0 < timeout_s < math.inf:
        raise ConfigError("timeout_s", timeout_s, "must be more than 0 seconds, and a time that ends")
    return float(timeout_s)
