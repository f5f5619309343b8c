"""Writing the map of this process to a file that others may read, whenever it has changed.

A thread writes it. A change only sets a flag, so it costs the same whatever the map is, and changes that come together
are written together. The thread takes each region's lock for the time of reading it. One that it does not get within a
moment is busy: it is published as it was before, with the operation and how long that has lasted, and looked at again.
So once a second it sees whether an operation lasts, which is all that it does in a process where nothing changes.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import logging
import os
import threading
import time
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

from vmmcache.memory.atlas.known import known
from vmmcache.memory.atlas.looking import look
from vmmcache.memory.atlas.places import file_of, private_folder, remove_leftovers
from vmmcache.memory.atlas.tables import TensorMap
from vmmcache.memory.undo import UndoStack
from vmmcache.metrics import on_change

__all__ = ["Published", "publish"]

_log: Final = logging.getLogger(__name__)

_PATIENCE_S: Final = 0.05
_AGAIN_S: Final = 1.0
"""How often it is seen whether a tensor is busy, and a busy one looked at."""
_SHARE: Final = 20
"""Writing may take one part in so many of the time."""
_LEAST_S: Final = 0.02

_current: list[Published] = []
_lock = threading.Lock()


class Published:
    """The map of this process, in a file, until `close` or the end of the process. Also a context manager.

    Attributes
    ----------
    path : str
        The file. Its folder is this user's alone.
    """

    def __init__(self) -> None:
        folder = private_folder()
        remove_leftovers(folder)
        self.path: Final = file_of(folder, os.getpid())
        self._pid: Final = os.getpid()
        # No Event: its lock is not re-entrant, and what is dropped while a thread holds it would wait for that thread.
        self._dirty: Final[SimpleQueue[None]] = SimpleQueue()
        self._closing: Final = threading.Event()
        self._writing: Final = threading.Lock()
        self._before: dict[int, TensorMap] = {}
        self._refused: str | None = None
        self._thread = threading.Thread(target=self._follow, name="vmmcache map", daemon=True)
        with UndoStack() as undo:
            # Before the first look: what changes since is looked at again.
            on_change.append(self._changed)
            undo.callback(on_change.remove, self._changed)
            self.flush()
            undo.callback(self._remove)
            try:
                self._thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, f"no room for a thread that follows: {error}") from error
            undo.commit()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def flush(self) -> None:
        """Write what there is now, and return when it is there.

        Raises
        ------
        OSError
            The file system refused. Afterwards the file is as it was.
        """
        with self._writing:
            found = look(_PATIENCE_S, self._before)
            self._before = {tensor.base: tensor for tensor in found.tensors}
            beside = f"{self.path}.new"
            data = json.dumps(found.to_dict(), separators=(",", ":")).encode()
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(beside, self.path)

    def close(self) -> None:
        """Remove the file. The second time does nothing, and nor does a child that was forked."""
        with _lock:
            if self not in _current or os.getpid() != self._pid:
                return
            _current.remove(self)
            on_change.remove(self._changed)
            atexit.unregister(self.close)
            self._closing.set()
            self._dirty.put(None)
            self._thread.join()
            self._remove()  # who publishes again does so to the same file, and only after this

    def _remove(self) -> None:
        for path in (self.path, f"{self.path}.new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _changed(self) -> None:
        if self._dirty.empty():
            self._dirty.put(None)

    def _was_changed(self) -> bool:
        """Wait for a change for a while. All until now are one."""
        try:
            self._dirty.get(timeout=_AGAIN_S)
        except Empty:
            return False
        while not self._dirty.empty():
            self._dirty.get()
        return True

    def _busy(self) -> bool:
        """Whether an operation lasts, or did when it was looked at: beginning one tells nobody."""
        lasting = any(each.region.gate.busy_with is not None for each in known())
        return lasting or any(tensor.busy is not None for tensor in self._before.values())

    def _follow(self) -> None:
        while True:
            changed = self._was_changed()
            if self._closing.is_set():
                return
            if not changed and not self._busy():
                continue
            begun = time.monotonic()
            try:
                self.flush()
                self._refused = None
            except OSError as error:
                # A full disk is no reason to stop serving; that the map is old is, once, one to say so.
                if self._refused != str(error):
                    _log.warning("%s: the map of this process is not up to date: %s", self.path, error)
                self._refused = str(error)
            self._closing.wait(max(_LEAST_S, _SHARE * (time.monotonic() - begun)))


def publish() -> Published:
    """Let ``vmmcache map PID`` see what this process has, from now on. The second time gives the same.

    The map goes to a file in a folder that only this user can enter (``$XDG_RUNTIME_DIR/vmmcache``, or
    ``vmmcache-UID`` among the temporary files). It says addresses, sizes and owners of leases, and nothing of what the
    memory holds. `VMMCACHE_MAP=1` in the environment does the same when the first tensor is made.

    Raises
    ------
    ConfigError
        The folder is not this user's alone.
    OSError
        The file system refused, or there is no room for another thread.
    """
    with _lock:
        if not _current:
            _current.append(Published())
        return _current[0]


def _after_fork() -> None:
    """A forked child publishes nothing: what it sees is its parent's."""
    global _lock
    _lock = threading.Lock()
    _current.clear()


os.register_at_fork(after_in_child=_after_fork)
