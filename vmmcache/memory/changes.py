"""Telling others what happens to a tensor's memory, before it goes and after it has changed.

Theory of operation
-------------------
*Before* is a question. ``about_to_release`` is asked in the thread of the operation, outside every lock, in the order
in which observers came, before owners of leases are made to let go and before anything is touched. An observer
that raises refuses: when all were asked, the operation ends with a LeaseError that names the first of those.

*After* is news. Each change is noted while the region is still locked, so that news are in the order of the changes
whatever the threads do, and told when the lock is free, by whichever thread is first, one at a time. When an operation
returns, its news have been told, unless an observer was at it at that moment: news that arise while news are told
(an observer changes the tensor itself) come after those. An observer that raises is logged and changes nothing: what
it was told of has happened.

Whatever was announced is followed by news with the same `Change.operation`: of the change, or ``kept`` where the
operation was refused, or failed and left everything as it was.

An observer may read the tensor and change it. It must not wait for another thread that changes the tensor: that one
waits for its own news to be told.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from vmmcache.errors import ConfigError, LeaseError
from vmmcache.memory.ranges import Range
from vmmcache.memory.states import Event, State

__all__ = ["Change", "ChangeEvent", "Look", "Observer", "Observers"]

_log = logging.getLogger(__name__)

ChangeEvent = Literal["about_to_release", "kept", "committed", "asleep", "restored", "closed", "lost"]


class Look(NamedTuple):
    """What there is of a tensor's memory."""

    state: State
    committed: tuple[int, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Change:
    """What happens, or has happened, to the memory of a tensor."""

    event: ChangeEvent
    """``"about_to_release"`` before; ``"committed"``, ``"asleep"``, ``"restored"``, ``"closed"`` after; ``"kept"``
    where what was announced did not come. ``"lost"``, of a tensor that another process shares: that one is gone."""
    ranges: tuple[Range, ...]
    """Bytes from the base address that will go, or be exchanged; afterwards those that were announced. Else empty."""
    committed: tuple[int, ...]
    """Bytes of each segment: before the operation, or after it."""
    generation: int
    operation: int
    """The same number before and after, and another for every operation."""


Observer = Callable[[Change], object]


class Observers:
    """Who wants to hear of one tensor's changes."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._observers: dict[object, Observer] = {}
        self._news: deque[Change] = deque()
        self._operations = itertools.count(1)
        self._telling = threading.RLock()
        self._told_by_us = False

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: Observer) -> Callable[[], None]:
        """Tell `observer` from now on. Calling what this returns ends that; the second time does nothing."""
        if not callable(observer):
            raise ConfigError("observer", observer, "must be callable, with one argument")
        token = object()
        self._observers[token] = observer

        def end() -> None:
            self._observers.pop(token, None)

        return end

    @contextmanager
    def around(
        self,
        event: Event,
        going: Sequence[Range],
        look: Callable[[], Look],
        prepare: Callable[[], object],
        locked: AbstractContextManager[object],
    ) -> Iterator[None]:
        """Ask before `going` goes, `prepare`, do the block `locked`, and tell what came of it."""
        operation, ranges, changed = next(self._operations), tuple(going) if self._observers else (), False
        try:
            if ranges:
                self.ask(Change("about_to_release", ranges, *look()[1:], operation))
            prepare()
            with locked:
                # Who came after it was asked has seen what there was before the lock, and hears what came of it.
                before = look() if ranges or self._observers else None
                try:
                    yield
                finally:
                    if before is not None and (changed := (after := look()) != before):
                        self._news.append(Change(_event(event, after.state), ranges, *after[1:], operation))
        finally:
            if ranges and not changed:
                self._news.append(Change("kept", ranges, *look()[1:], operation))
            self.tell()

    def ask(self, change: Change) -> None:
        """Announce a change. LeaseError where an observer refuses, from what it raised."""
        answers = [(observer, _call(observer, change)) for observer in tuple(self._observers.values())]
        for observer, refusal in answers:
            if refusal is not None:
                raise LeaseError(
                    f"{self._who}: {observer!r} refused to let bytes go: {type(refusal).__name__}: {refusal}",
                    owners=(repr(observer),),
                ) from refusal

    def tell(self, *news: Change) -> None:
        """Tell `news`, after what was noted before."""
        self._news += news
        if not self._news:
            return  # without the lock: in a forked child it may be held by a thread that is not there
        with self._telling:
            if self._told_by_us:
                return  # an observer has changed the tensor; the loop that called it goes on with these
            self._told_by_us = True
            try:
                while self._news:
                    change = self._news.popleft()
                    for observer in tuple(self._observers.values()):
                        if (error := _call(observer, change)) is not None:
                            _log.error("%s: %r failed at %s", self._who, observer, change.event, exc_info=error)
            finally:
                self._told_by_us = False


def _call(observer: Observer, change: Change) -> Exception | None:
    try:
        observer(change)
    except Exception as error:  # noqa: BLE001 -- a stranger's code may raise anything; our caller refuses, or logs it
        return error
    return None


def _event(event: Event, state: State) -> ChangeEvent:
    """What an operation has done, by the state that it led to: an operation that fails may lead to another."""
    if state is State.COMMITTED:
        return "restored" if event is Event.WAKE else "committed"
    return "asleep" if state is State.ASLEEP else "closed" if state is State.CLOSED else "committed"
