"""The importer's side of a connection: does what the exporter asks, and answers."""

from __future__ import annotations

import logging
import os
import select
import threading
from typing import Final, cast

from vmmcache.errors import DriverError, LeaseError, SharingError, StateError, VmmCacheError
from vmmcache.memory.changes import Change, ChangeEvent, Observers
from vmmcache.memory.lifetime import Lifetime
from vmmcache.sharing._channel import Channel, Descriptors
from vmmcache.sharing._mirror import Holds, Mirror
from vmmcache.sharing._news import News
from vmmcache.sharing._wire import Ack, Frame, Map, Refused, State, Unmap

__all__ = ["Link"]

_log = logging.getLogger(__name__)

_EVENTS: Final = ("committed", "asleep", "restored", "closed", "kept")


class Link:
    """Keeps a mirror equal to the exporter's tensor. One thread at a time calls `step`.

    Never holds the tensor that a user has: when that is gone, `abandon` ends the connection.
    """

    def __init__(self, channel: Channel, mirror: Mirror, lifetime: Lifetime) -> None:
        self.state = "connected"
        """``"connected"``; ``"lost"`` where the exporter is gone; ``"ended"`` where it, or we, have said so."""
        self.holds: Final = Holds()
        self.observers: Final = Observers(f"memory of {channel.peer}")
        self.news: Final = News()
        self.observers.add(self.news.put)
        self.seen = False
        """Whether the exporter has said what is committed."""
        self.problem: VmmCacheError | None = None
        """What could not be done last, and was refused; None where all that was asked is done."""
        self._channel = channel
        self._mirror = mirror
        self._lifetime = lifetime
        self._operation = 0
        self._pid: Final = os.getpid()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = self._abandoned = False
        self._thread: threading.Thread | None = None
        # Who closes: the thread at its end, or whoever finds that it is over. Re-entrant: what is dropped in the middle
        # of it may be the tensor, whose end asks the same.
        self._ending = threading.RLock()
        self._over = True

    @property
    def ours(self) -> bool:
        """Whether this is the thread that does the exporter's bidding."""
        return threading.current_thread() is self._thread

    @property
    def following(self) -> bool:
        """Whether a thread does it."""
        return self._thread is not None

    def start(self) -> None:
        """Do what is asked in a thread of its own, from now on; SharingError where there is no room for one."""
        thread = threading.Thread(target=self._run, name=f"vmmcache importer of {self._channel.peer}", daemon=True)
        self._over = False
        try:
            thread.start()
        except RuntimeError as error:
            self._over = True
            raise SharingError(f"cannot be followed: {error}", peer=self._peer, cure="End other threads") from error
        self._thread = thread

    def stop(self) -> None:
        """End the thread, if there is one, between two questions."""
        self._stopping = True
        if (thread := self._thread) is not None:
            self._nudge()
            thread.join()
            self._thread = None

    def abandon(self) -> None:
        """The tensor is gone: unmap what no view needs, and leave. From a finalizer, so nobody is waited for.

        Where views are left, the exporter is told all the same that we are gone: it waits for us no more, and its
        memory comes back when the last view dies.
        """
        self._lifetime.abandon()
        if os.getpid() != self._pid:
            # The parent goes on with it; a lock may be held by a thread that is not here. Only our descriptors go.
            self._channel.close()
            os.close(self._wake)
            return
        with self._ending:
            self._abandoned = self._stopping = True
            if self._over:
                self.close()
            else:
                self._nudge()  # and it closes when it ends

    def close(self) -> None:
        """Close the connection; the exporter learns of it, and waits for us no more."""
        with self._ending:
            if self.state == "connected":
                self.state = "ended"
            wake, self._wake = self._wake, -1
            if wake >= 0:
                os.eventfd_write(wake, 1)  # another thread may wait for the exporter
                os.close(wake)
            self._channel.close()  # last: whoever hears of it finds that nothing is left

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the exporter has said something within a time."""
        poll = select.poll()
        with self._ending:
            if self._wake < 0:
                return False
            poll.register(self._channel.fileno(), select.POLLIN)
            poll.register(self._wake, select.POLLIN)
        ready = poll.poll(None if timeout_s is None else max(0, timeout_s) * 1000)
        return self._wake >= 0 and any(number != self._wake for number, _ in ready)

    def step(self) -> None:
        """Do one thing that the exporter asks, and answer.

        Raises
        ------
        SharingError
            The exporter is gone, or broke the protocol: the connection has ended, and what is mapped stays mapped.
        """
        try:
            frame, descriptors = self._channel.receive()
            with descriptors:
                answer = self._answer(frame, descriptors)
            self._channel.send(answer)
            if self.state == "ended":
                self._channel.hang_up()
        except SharingError as error:
            self._lose(error)
            raise

    # ----------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping and self.state == "connected":
                if self.wait(None):
                    try:
                        self.step()
                    except SharingError as error:
                        _log.warning("%s", error)
        finally:
            with self._ending:
                self._over = True
                if self._abandoned:
                    self.close()

    def _nudge(self) -> None:
        with self._ending:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _answer(self, frame: Frame, descriptors: Descriptors) -> Frame:
        match frame:
            case Map(number=number) | Unmap(number=number) | State(number=number):
                try:
                    self._do(frame, descriptors)
                except (StateError, LeaseError, DriverError) as error:
                    if isinstance(frame, Unmap) and isinstance(error, DriverError):
                        # Some of it may have gone; nobody knows what the exporter could count on.
                        self._channel.send(Refused(0, str(error)))
                        raise SharingError(
                            f"asked for memory that cannot be unmapped: {error}", peer=self._peer
                        ) from error
                    self.problem = error
                    return Refused(number, f"{type(error).__name__}: {error}")
                return Ack(number)
            case Refused(reason=reason):
                raise SharingError(f"has ended the connection: {reason}", peer=self._peer, gone=True)
        raise self._channel.unexpected(frame, descriptors)

    def _do(self, frame: Map | Unmap | State, descriptors: Descriptors) -> None:
        if not isinstance(frame, Map) and descriptors:
            raise self._channel.unexpected(frame, descriptors)
        if isinstance(frame, Map):
            self._mirror.map(frame.entries, descriptors)
        elif isinstance(frame, Unmap):
            going = self._mirror.going(frame.ids)
            if frame.asked:
                self._operation += 1
                self.observers.ask(self._change("about_to_release", going))
            with self.holds.none():
                self._mirror.unmap(frame.ids)
        else:
            if frame.event not in _EVENTS:
                raise SharingError(f"sent the unknown event {frame.event!r}", peer=self._peer)
            self._mirror.commit(frame.committed, frame.generation)
            self.seen, self.problem = True, None
            if frame.event == "closed":
                self.state = "ended"
            self.observers.tell(self._change(cast("ChangeEvent", frame.event)))

    def _lose(self, error: SharingError) -> None:
        # What is mapped stays: memory lives as long as anyone maps it.
        if self.state == "connected":
            self.problem = error
            self.state = "lost"
            self._channel.hang_up()
            self.observers.tell(self._change("lost"))

    def _change(self, event: ChangeEvent, ranges: tuple[tuple[int, int], ...] = ()) -> Change:
        return Change(event, ranges, self._mirror.committed, self._mirror.generation, self._operation)

    @property
    def _peer(self) -> str:
        return self._channel.peer
