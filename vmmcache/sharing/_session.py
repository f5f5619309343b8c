"""The exporter's side of one importer: a thread that is the only one to speak with it."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from vmmcache.connectors.leases import RegistrationLease
from vmmcache.driver import HandleType
from vmmcache.errors import SharingError, StaleSegment, StateError, VmmCacheError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.ranges import Range, subtract
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.sharing._channel import Channel
from vmmcache.sharing._releases import Releases, Request
from vmmcache.sharing._wire import (
    BATCH,
    MAX_IDS,
    VERSION,
    Ack,
    Entry,
    Frame,
    Hello,
    Map,
    Refused,
    State,
    Unmap,
    Welcome,
)

__all__ = ["Session"]

_log = logging.getLogger(__name__)


class _Snapshot(NamedTuple):
    pieces: tuple[RegistrableSegment, ...]
    committed: tuple[int, ...]
    generation: int


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
        self.held: dict[int, RegistrableSegment] = {}
        """What the importer maps, by the number of the allocation."""
        self.problem: str | None = None
        """What it refused last; None where it maps all that it was sent."""
        self._tensor = tensor
        self._channel = channel
        self._releases = releases
        self._kind = kind
        self._on_revoke = on_revoke
        self._on_end = on_end
        self._leases: dict[int, RegistrationLease] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._event: str | None = "committed"  # to be told: first of all, what there is
        self._was_asked = False
        self._over = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"vmmcache {self.name}", daemon=True)

    def start(self) -> None:
        """Begin to speak with the importer."""
        try:
            self._thread.start()
        except RuntimeError:  # no room for another thread
            self._end()
            raise

    # From any thread ------------------------------------------------------------------------------------------------

    def changed(self, event: str) -> None:
        """The tensor has changed: the importer is to be told, and to follow."""
        with self._lock:
            # Who was not asked to let go need not hear that it may keep what it has.
            if event != "kept" or self._was_asked:
                self._event = event
            self._nudge()

    def ask(self, request: Request) -> Request:
        """Ask the importer to let go, without waiting for its answer."""
        with self._lock:
            if self._over:
                request.answer()
            else:
                self._requests.append(request)
                self._nudge()
        return request

    def cut(self, why: str) -> None:
        """End the connection. What the importer still maps stays with it, and does not come back before it ends."""
        _log.warning("%s is cut off: %s. Memory that it maps comes back when it ends", self.name, why)
        self._channel.hang_up()
        self._drop_leases(lambda _: False)

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
            self._follow(_Snapshot((), (0,) * len(self._tensor.segment_sizes), self._tensor.generation), event)
            return False
        elif (snapshot := self._snapshot()) is None:
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
        try:
            ids = self._going(request.going)
            with self._lock:
                # Before the next look: whatever comes of the release is told to who was asked.
                self._was_asked |= bool(ids)
            if not self._releases.wants(request):
                ids = []  # the operation has ended without us, and what we have stays
            for start in range(0, len(ids), MAX_IDS):
                batch = ids[start : start + MAX_IDS]
                refusal = self._question(Unmap(self._next(), True, tuple(batch)))
                if refusal is not None:
                    request.answer(refusal)
                    return
                for number in batch:
                    del self.held[number]
            needed = {piece.segment_index for piece in self.held.values()}
            self._drop_leases(needed.__contains__)
        except VmmCacheError:
            # It is gone, or to be sent away: then it holds nothing that we could wait for.
            request.answer()
            raise
        request.answer()

    def _going(self, going: Sequence[Range] | None) -> list[int]:
        """What the importer maps that lies in `going`, with every byte that is visible."""
        if going is None:
            return list(self.held)
        base = self._tensor.base_address
        stays = {
            piece.allocation_id
            for piece in self._pieces()
            if subtract([(piece.base - base, piece.base - base + piece.nbytes)], going)
        }
        return [number for number in self.held if number not in stays]

    def _pieces(self) -> tuple[RegistrableSegment, ...]:
        try:
            return self._tensor.registrable()
        except StateError:  # closed: there is nothing any more
            return ()

    # Following the tensor -------------------------------------------------------------------------------------------

    def _snapshot(self) -> _Snapshot | None:
        """What there is, leased; None while something of it is about to go."""
        while True:
            with self._releases.none() as quiet:
                if not quiet:
                    return None
                self._lease()
                pieces = self._pieces()
            committed = [0] * len(self._tensor.segment_sizes)
            for piece in pieces:
                committed[piece.segment_index] += piece.nbytes
            if all(
                nbytes <= (lease.nbytes if (lease := self._leases.get(index)) and lease.valid else 0)
                for index, nbytes in enumerate(committed)
            ):
                generation = pieces[0].generation if pieces else self._tensor.generation
                return _Snapshot(pieces, tuple(committed), generation)

    def _lease(self) -> None:
        for index, nbytes in enumerate(self._tensor.committed):
            lease = self._leases.get(index)
            if nbytes and not (lease is not None and lease.valid and lease.nbytes >= nbytes):
                try:
                    self._leases[index] = self._tensor.lease(index, self.name, self._revoked)
                except StateError:
                    continue  # it has gone meanwhile, as whoever compares will see
                if lease is not None:
                    lease.release()  # when what it covers is covered by the new one

    def _revoked(self, lease: RegistrationLease) -> None:
        self._on_revoke(self, lease)

    def _follow(self, snapshot: _Snapshot, event: str) -> None:
        there = {piece.allocation_id: piece for piece in snapshot.pieces}
        gone = [number for number in self.held if number not in there]
        for start in range(0, len(gone), MAX_IDS):
            batch = gone[start : start + MAX_IDS]
            if (refusal := self._question(Unmap(self._next(), False, tuple(batch)))) is not None:
                raise SharingError(f"keeps memory that is gone: {refusal}", peer=self._channel.peer)
            for number in batch:
                del self.held[number]
        new = [piece for number, piece in there.items() if number not in self.held]
        try:
            refusal = self._send(new)
        except StaleSegment:
            # What is leased has stayed, but the tensor has given back something else.
            self._again(event)
            return
        if refusal is None:
            refusal = self._question(State(self._next(), event, snapshot.generation, snapshot.committed))
        if refusal != self.problem and refusal is not None:
            _log.warning("%s does not follow: %s", self.name, refusal)
        self.problem, self._was_asked = refusal, False
        needed = {index for index, nbytes in enumerate(snapshot.committed) if nbytes}
        self._drop_leases(needed.__contains__)

    def _send(self, pieces: Sequence[RegistrableSegment]) -> str | None:
        """Hand over allocations; why the importer did not take them."""
        for start in range(0, len(pieces), BATCH):
            batch = pieces[start : start + BATCH]
            with ExitStack() as exports:
                handles = [exports.enter_context(self._tensor.export(piece, self._kind)).handle for piece in batch]
                base = self._tensor.base_address
                entries = tuple(
                    Entry(
                        piece.allocation_id,
                        piece.base - piece.allocation_offset - base,
                        piece.allocation_nbytes,
                        b"" if isinstance(handle, int) else handle,
                    )
                    for piece, handle in zip(batch, handles, strict=True)
                )
                descriptors = [handle for handle in handles if isinstance(handle, int)]
                refusal = self._question(Map(self._next(), entries), descriptors)
            if refusal is not None:
                return refusal
            self.held.update((piece.allocation_id, piece) for piece in batch)
        return None

    def _again(self, event: str) -> None:
        with self._lock:
            self._event = self._event or event

    def _question(self, frame: Map | Unmap | State, descriptors: Sequence[int] = ()) -> str | None:
        """Ask, and wait for the answer as long as it takes: whoever cannot wait cuts. None where it is done."""
        self._channel.send(frame, descriptors)
        answer: Frame = self._channel.expect(Ack, Refused)
        if isinstance(answer, Refused) and answer.number == 0:
            raise SharingError(f"leaves: {answer.reason}", peer=self._channel.peer, gone=True)
        if not isinstance(answer, Ack | Refused) or answer.number != frame.number:
            raise SharingError(f"answers {answer} to question {frame.number}", peer=self._channel.peer)
        return answer.reason if isinstance(answer, Refused) else None

    def _next(self) -> int:
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number

    # ----------------------------------------------------------------------------------------------------------------

    def _drop_leases(self, needed: Callable[[int], bool]) -> None:
        for index in [index for index in self._leases if not needed(index)]:
            lease = self._leases.pop(index, None)
            if lease is not None:
                lease.release()

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
        self._drop_leases(lambda _: False)
        self._on_end(self)
