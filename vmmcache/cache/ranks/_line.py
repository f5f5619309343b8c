"""Requests to a store that may never answer.

A store's client waits in native code, without a limit where its host is stopped or its machine gone: only the wait for
a key has one. So every request is made in a thread of its own, and it is that thread which hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

__all__ = ["Call", "KeyValueStore", "Line", "absent"]

_T = TypeVar("_T")


class KeyValueStore(Protocol):
    """What is used of ``torch.distributed.Store``. Its failures are RuntimeErrors."""

    def set(self, key: str, value: bytes) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read; waits for the key."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read several in one request."""

    def add(self, key: str, amount: int) -> int:
        """Count up, and say how far."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write unless it is written already (`expected` empty), and say what stands there then."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are written."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Until all keys are written."""

    def delete_key(self, key: str) -> bool:
        """Take a key out."""


class Call(Generic[_T]):
    """Requests under way."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self._done = threading.Event()
        self.answers: list[_T] = []
        """What came back: one, or none yet."""
        self.error: RuntimeError | None = None
        # A daemon: one that hangs for ever does not keep the process from ending.
        threading.Thread(target=self._run, name="vmmcache-ranks", daemon=True).start()

    def finished(self, within_s: float) -> bool:
        """Whether it is over, after waiting that long at most."""
        return self._done.wait(within_s)

    def _run(self) -> None:
        try:
            self.answers.append(self._work())
        except RuntimeError as error:
            self.error = error
        finally:
            self._done.set()


class Line:
    """A connection to the store, made with the first request."""

    def __init__(self, connect: Callable[[], KeyValueStore]) -> None:
        self._connect = connect
        self._store: KeyValueStore | None = None

    def call(self, work: Callable[[KeyValueStore], _T]) -> Call[_T]:
        """Begin."""

        def connected() -> _T:
            if self._store is None:
                self._store = self._connect()
            return work(self._store)

        return Call(connected)

    def drop(self) -> None:
        """Let the connection go; one that hangs ends with its thread."""
        self._store = None


def absent(store: KeyValueStore, keys: Sequence[str]) -> list[str]:
    """Which keys are not written. For a few of many it halves: no request for each key."""
    if not keys or store.check(list(keys)):
        return []
    if len(keys) == 1:
        return list(keys)
    middle = len(keys) // 2
    return absent(store, keys[:middle]) + absent(store, keys[middle:])
