"""Changes that wait to be taken."""

from __future__ import annotations

import threading
from collections import deque

from vmmcache.memory.changes import Change

__all__ = ["News"]


class News:
    """A queue of changes; the oldest go where nobody takes them."""

    def __init__(self, most: int = 1024) -> None:
        self._changes: deque[Change] = deque(maxlen=most)
        self._changed = threading.Condition()

    def put(self, change: Change) -> None:
        """Add one. An observer."""
        with self._changed:
            self._changes.append(change)
            self._changed.notify()

    def take(self, timeout_s: float | None) -> Change | None:
        """The oldest, waiting for it; None when the time is over."""
        with self._changed:
            return self._changes.popleft() if self._changed.wait_for(self._changes.__len__, timeout_s) else None
