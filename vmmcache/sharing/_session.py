"""The exporter's side of one importer: a thread that is the only one to speak with it."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Final

from vmmcache.connectors.leases import RegistrationLease
from vmmcache.driver import HandleType
from vmmcache.errors import SharingError, StaleSegment, StateError, VmmCacheError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.sharing._channel import Channel
from vmmcache.sharing._holding import Holding, Snapshot
from vmmcache.sharing._releases import Releases, Request
from vmmcache.sharing._wire import VERSION, Hello, Refused, Welcome

__all__ = ["Session"]

_log = logging.getLogger(__name__)


class Session:
    """What one importer maps, kept equal to what the tensor has.

    Parameters
    ----------
    tensor : ExtensibleTensor
    channel : Channel
        Owned from here on.
    releases : Releases
        Of the server: while something is about to go, nothing is sent.
    kind : {"posix_fd", "fabric"} or None
        Which handles to send.
    on_revoke : callable
        Called with this session where its leases are in the way of an operation that may revoke.
    on_end : callable
        Called with this session, from its thread, when it is over.
    """

    def __init__(
        self,
        tensor: ExtensibleTensor,
        channel: Channel,
        releases: Releases,
        kind: HandleType | None,
        on_revoke: Callable[[Session, RegistrationLease], object],
        on_end: Callable[[Session], object],
    ) -> None:
        self.name: Final = f"importer {channel.peer}"
        self.credentials: Final = channel.credentials
        self.problem: str | None = None
        """What it refused last; None where it maps all that it was sent."""
        self._tensor = tensor
        self._channel = channel
        self._releases = releases
        self._on_end = on_end
        self._holding: Final = Holding(tensor, channel, kind, self.name, lambda lease: on_revoke(self, lease))
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._event: str | None = "committed"  # to be told: first of all, what there is
        self._was_asked = False
        self._over = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"vmmcache {self.name}", daemon=True)

    def start(self) -> None:
        """Begin to speak with the importer; SharingError where there is no room for another thread."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._end()
            raise SharingError(f"is sent away: {error}", peer=self._channel.peer, cure="End other threads") from error

    # From any thread ------------------------------------------------------------------------------------------------

    @property
    def held(self) -> tuple[RegistrableSegment, ...]:
        """What the importer maps."""
        return tuple(self._holding.held.values())

    def changed(self, event: str) -> None:
        """The tensor has changed: the importer is to be told, and to follow."""
        self._holding.lease_again()
        with self._lock:
            # Who was not asked to let go need not hear that it may keep what it has. The end is told whatever another
            # thread has to tell at that moment.
            if (event != "kept" or self._was_asked) and self._event != "closed":
                self._event = event
            self._nudge()

    def ask(self, request: Request) -> Request:
        """Ask the importer to let go, without waiting for its answer."""
        with self._lock:
            if self._over:
                request.answer()
            else:
                if request.everything and self._event != "closed":
                    request.event, self._event = self._event, None
                self._requests.append(request)
                self._nudge()
        return request

    def withdraw(self, request: Request) -> None:
        """Nobody waits for that any more: what the importer has let go of because of it, or will, it gets again."""
        with self._lock:
            request.withdrawn = True
            if request.granted:
                self._event = self._event or "kept"
                self._nudge()

    def cut(self, why: str) -> None:
        """End the connection. What the importer still maps stays with it, and does not come back before it ends."""
        _log.warning("%s is cut off: %s. Memory that it maps comes back when it ends", self.name, why)
        self._channel.hang_up()
        self._holding.end()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within a time."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _nudge(self) -> None:
        if not self._over:
            os.eventfd_write(self._wake, 1)

    # In its thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._greet()
            while self._serve():
                pass
        except SharingError as error:
            _log.log(logging.INFO if error.gone else logging.WARNING, "%s: %s", self.name, error)
        except VmmCacheError as error:
            _log.warning("%s is sent away: %s", self.name, error)
            self._refuse(str(error))
        finally:
            self._end()

    def _greet(self) -> None:
        hello = self._channel.expect(Hello, timeout_s=self._channel.timeout_s)
        assert isinstance(hello, Hello)  # expected
        if not hello.lowest <= VERSION <= hello.highest:
            raise StateError(
                f"it speaks versions {hello.lowest} to {hello.highest}, and we speak {VERSION}",
                state="greeting",
                event="connect",
            )
        tensor = self._tensor
        self._channel.send(
            Welcome(VERSION, tensor.driver.device_type, tensor.granule, tensor.capacity, tensor.segment_sizes)
        )

    def _serve(self) -> bool:
        """Do what there is to do, or wait for it. False when it is over."""
        with self._lock:
            request = self._requests.pop(0) if self._requests else None
            # Taken before the tensor is looked at: what is news from then on is told next.
            event, self._event = (self._event, None) if request is None else (None, self._event)
        if request is not None:
            self._let_go(request)
        elif event is None:
            self._wait()
        elif event == "closed":
            self._follow(Snapshot.of_nothing(self._tensor), event)
            return False
        elif (snapshot := self._holding.snapshot(self._releases)) is None:
            self._again(event)
            self._wait()  # for the news of what is about to go
        else:
            self._follow(snapshot, event)
        return True

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._channel.fileno(), select.POLLIN)
        ready = {number for number, _ in poll.poll()}
        if self._wake in ready:
            os.eventfd_read(self._wake)
        if ready - {self._wake}:
            frame, descriptors = self._channel.receive()
            with descriptors:
                raise self._channel.unexpected(frame, descriptors)

    def _let_go(self, request: Request) -> None:
        holding = self._holding
        try:
            ids = holding.going(request.going)
            with self._lock:
                # Before the next look: whatever comes of the release is told to who was asked.
                self._was_asked |= bool(ids)
            if not (wanted := self._releases.wants(request)):
                ids = []  # the operation has ended without us, and what we have stays
            refusal = holding.unmap(ids, asked=True)
            if refusal is None:
                holding.keep_leases(piece.segment_index for piece in self.held)
            if refusal is None and wanted:
                holding.shorten_leases(request.going or ())
                if request.event is not None:
                    # Of a change from before: it hears of it, and is sent nothing that it would map again.
                    self.problem = holding.show(request.event, Snapshot.of_nothing(self._tensor))
            elif request.event is not None:
                self._again(request.event)
        except VmmCacheError:
            # It is gone, or to be sent away: then it holds nothing that we could wait for.
            request.answer()
            raise
        with self._lock:
            request.answer(refusal)
            if request.withdrawn:
                self._event = self._event or "kept"

    def _follow(self, snapshot: Snapshot, event: str) -> None:
        """Have the importer map what the tensor has, and no more."""
        holding = self._holding
        there = {piece.allocation_id: piece for piece in snapshot.pieces}
        gone = [number for number in holding.held if number not in there]
        if (refusal := holding.unmap(gone, asked=False)) is not None:
            raise SharingError(f"keeps memory that is gone: {refusal}", peer=self._channel.peer)
        new = [piece for number, piece in there.items() if number not in holding.held]
        try:
            refusal = holding.send(new)
        except StaleSegment:
            # What is leased has stayed, but the tensor has given back something else.
            self._again(event)
            return
        if refusal is None:
            refusal = holding.show(event, snapshot)
        if refusal != self.problem and refusal is not None:
            _log.warning("%s does not follow: %s", self.name, refusal)
        self.problem, self._was_asked = refusal, False
        holding.keep_leases(index for index, nbytes in enumerate(snapshot.committed) if nbytes)

    def _again(self, event: str) -> None:
        with self._lock:
            # Whoever is to let go of everything does not map, before or after, what there was until then.
            for request in self._requests:
                if request.everything:
                    request.event = request.event or event
                    return
            self._event = self._event or event

    def _refuse(self, reason: str) -> None:
        try:
            self._channel.send(Refused(0, reason))
        except SharingError as error:
            _log.info("%s does not hear why: %s", self.name, error)

    def _end(self) -> None:
        with self._lock:
            self._over = True
            requests, self._requests = self._requests, []
            os.close(self._wake)
        for request in requests:
            request.answer()
        self._channel.close()
        self._holding.end()
        self._on_end(self)
