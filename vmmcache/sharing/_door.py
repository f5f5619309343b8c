"""The socket at which importers knock, and the thread that opens."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from vmmcache.errors import SharingError
from vmmcache.fds import FD_CURE
from vmmcache.sharing._peers import listen, unlink

__all__ = ["Door"]

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
"""After one who could not be let in: descriptors and threads come back when others end."""


class Door:
    """A socket in the file system. Nobody is let in before `open`.

    Parameters
    ----------
    path : str
        Of a socket that nobody listens at.
    mode : int
        Of its file.
    let_in : callable
        Called with each connected socket, which it owns from then on, in the door's thread.

    Raises
    ------
    ConfigError
        The path cannot be listened at.
    SharingError
        This process has no descriptor left.
    """

    def __init__(self, path: str, mode: int, let_in: Callable[[socket.socket], object]) -> None:
        self._path = path
        self._let_in = let_in
        with ExitStack() as undo:
            self._listener = listen(path, mode)
            undo.callback(self._listener.close)
            self._unlink = weakref.finalize(self, unlink, path, os.stat(path).st_ino, os.getpid())
            undo.callback(self._unlink)
            try:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except OSError as error:
                raise SharingError(f"cannot be opened: {error.strerror}", peer=path, cure=FD_CURE) from error
            undo.pop_all()
        self._thread = threading.Thread(target=self._run, name=f"vmmcache server {path}", daemon=True)

    def open(self) -> None:
        """Let in whoever comes, from now on.

        Raises
        ------
        SharingError
            This process has no room for another thread.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            raise SharingError(f"cannot be opened: {error}", peer=self._path, cure="End threads") from error

    def shut(self) -> None:
        """Let in nobody any more. The second time does nothing."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            os.eventfd_write(self._wake, 1)
            self._thread.join()

    def close(self) -> None:
        """Remove the socket. The second time does nothing."""
        self.shut()
        self._unlink()
        self._listener.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        while self._wake not in dict(poll.poll()):
            try:
                sock, _ = self._listener.accept()
                self._let_in(sock)
            except (OSError, SharingError) as error:
                # It has gone again, or there is no descriptor or thread left. Whoever comes later may have more luck.
                _log.warning("%s: nobody can be let in: %s", self._path, error)
                time.sleep(_PAUSE_S)
