"""Which operations of the exporter are about to take memory away, and what of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from vmmcache.memory.changes import Change
from vmmcache.memory.ranges import Range, merged

__all__ = ["Release", "Releases", "Request"]


class Request:
    """That an importer let go of some bytes, and what it answered."""

    def __init__(self, going: list[Range] | None = None, operation: int | None = None) -> None:
        self.going: Final = going
        """None: all of them."""
        self.operation: Final = operation
        """Of the tensor, because of which it is asked; None where the server asks by itself."""
        self.event: str | None = None
        """What the importer was still to be told of when everything was asked back; None where it knew."""
        self.refusal: str | None = None
        self.withdrawn = False
        """Nobody waits for the answer any more, and the importer is to have what it had."""
        self._answered = threading.Event()

    @property
    def everything(self) -> bool:
        """Whether it is about all that the importer maps, whatever happens to the tensor."""
        return self.going is None

    def answer(self, refusal: str | None = None) -> None:
        """It has let go, or says why not."""
        self.refusal = refusal
        self._answered.set()

    @property
    def granted(self) -> bool:
        """Whether it has let go."""
        return self._answered.is_set() and self.refusal is None

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an answer within a time."""
        return self._answered.wait(max(0.0, timeout_s))


class Release:
    """One operation, and what importers were asked because of it: all at once, when the first is in the way."""

    def __init__(self, going: list[Range] | None, operation: int | None) -> None:
        self.operation: Final = operation
        self._going = going
        self.deadline: float | None = None
        self._requests: dict[object, Request] = {}

    def request(self, of: object, ask: Callable[[Request], Request]) -> Request:
        """What an importer was asked; `ask` it where it was not yet."""
        if of not in self._requests:
            self._requests[of] = ask(Request(self._going, self.operation))
        return self._requests[of]


class Releases:
    """From the announcement of a release until its news nothing is leased and sent: it could be what is to go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._of_thread = threading.local()

    def heard(self, change: Change) -> None:
        """Note what a change says."""
        with self._lock:
            if change.event == "about_to_release":
                self._running.add(change.operation)
                # Ascending, but where segments are exchanged they may overlap.
                self._of_thread.release = Release(merged(change.ranges), change.operation)
            else:
                self._running.discard(change.operation)

    @property
    def mine(self) -> Release | None:
        """The release that this thread has announced and that is not over; None where it has announced none."""
        release: Release | None = getattr(self._of_thread, "release", None)
        with self._lock:
            return release if release is not None and release.operation in self._running else None

    def wants(self, request: Request) -> bool:
        """Whether what a request is about is still about to go."""
        with self._lock:
            return not request.withdrawn and (request.operation is None or request.operation in self._running)

    @contextmanager
    def none(self) -> Iterator[bool]:
        """Whether nothing is about to go; and nothing is announced before the block ends."""
        with self._lock:
            yield not self._running
