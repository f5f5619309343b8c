"""What one importer maps of the exporter's tensor, the leases that keep it, and the questions by which it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from vmmcache.connectors.leases import RegistrationLease
from vmmcache.driver import HandleType
from vmmcache.errors import SharingError, StateError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.ranges import Range, subtract
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.sharing._channel import Channel
from vmmcache.sharing._releases import Releases
from vmmcache.sharing._wire import BATCH, MAX_IDS, Ack, Entry, Frame, Map, Refused, State, Unmap

__all__ = ["Holding", "Snapshot"]


class Snapshot(NamedTuple):
    """What there was of a tensor at a moment."""

    pieces: tuple[RegistrableSegment, ...]
    committed: tuple[int, ...]
    generation: int

    @classmethod
    def of_nothing(cls, tensor: ExtensibleTensor) -> Snapshot:
        """A tensor without memory."""
        return cls((), (0,) * len(tensor.segment_sizes), tensor.generation)


class Holding:
    """One thread asks the importer; leases may be taken and given back from any.

    Parameters
    ----------
    tensor : ExtensibleTensor
    channel : Channel
    kind : {"posix_fd", "fabric"} or None
        Which handles to send.
    owner : str
        In whose name leases are taken.
    on_revoke : callable
        Called with a lease that is in the way of an operation that may revoke.
    """

    def __init__(
        self,
        tensor: ExtensibleTensor,
        channel: Channel,
        kind: HandleType | None,
        owner: str,
        on_revoke: Callable[[RegistrationLease], object],
    ) -> None:
        self.held: dict[int, RegistrableSegment] = {}
        """What the importer maps, by the number of the allocation."""
        self._tensor = tensor
        self._channel = channel
        self._kind = kind
        self._owner = owner
        self._on_revoke = on_revoke
        self._lock = threading.Lock()
        self._leases: dict[int, RegistrationLease] = {}
        self._ended = False
        self._number = 0

    # What is leased -------------------------------------------------------------------------------------------------

    def snapshot(self, releases: Releases) -> Snapshot | None:
        """What there is, leased; None while something of it is about to go.

        Raises
        ------
        SharingError
            It was cut off meanwhile.
        """
        while True:
            with releases.none() as quiet:
                if not quiet:
                    return None
                self._lease(range(len(self._tensor.segment_sizes)))
                pieces = self._pieces()
            committed = [0] * len(self._tensor.segment_sizes)
            for piece in pieces:
                committed[piece.segment_index] += piece.nbytes
            if self._ended:
                raise SharingError("was cut off", peer=self._channel.peer, gone=True)
            if all(
                nbytes <= (lease.nbytes if (lease := self._leases.get(index)) and lease.valid else 0)
                for index, nbytes in enumerate(committed)
            ):
                generation = pieces[0].generation if pieces else self._tensor.generation
                return Snapshot(pieces, tuple(committed), generation)

    def lease_again(self) -> None:
        """Lease what the importer still maps of segments whose lease a revoke has ended.

        In the thread of the operation that did, and before it returns: the next one is to find a lease.
        """
        self._lease({piece.segment_index for piece in tuple(self.held.values())})

    def keep_leases(self, segments: Iterable[int]) -> None:
        """Give back the leases of all other segments."""
        needed = set(segments)
        with self._lock:
            gone = [self._leases.pop(index) for index in tuple(self._leases) if index not in needed]
        for lease in gone:
            lease.release()

    def shorten_leases(self, going: Sequence[Range]) -> None:
        """Let `going` go, and go on leasing what is before it: another operation than the one that asked may want it.

        What is behind is leased again with the news, by `lease_again`.
        """
        base = self._tensor.base_address
        addresses = [(base + start, base + stop) for start, stop in going]
        with self._lock:
            shorter = {index: lease.shorten(addresses) for index, lease in self._leases.items()}
            self._leases = {index: lease for index, lease in shorter.items() if lease is not None}

    def end(self) -> None:
        """Give back all leases, and take no other. The second time does nothing."""
        with self._lock:
            self._ended = True
        self.keep_leases(())

    def _lease(self, segments: Iterable[int]) -> None:
        with self._lock:
            committed = self._tensor.committed
            for index in () if self._ended else segments:
                lease, nbytes = self._leases.get(index), committed[index]
                if nbytes and not (lease is not None and lease.valid and lease.nbytes >= nbytes):
                    try:
                        self._leases[index] = self._tensor.lease(index, self._owner, self._on_revoke)
                    except StateError:
                        continue  # it has gone meanwhile, as whoever compares will see
                    if lease is not None:
                        lease.release()  # when what it covers is covered by the new one

    # What is mapped -------------------------------------------------------------------------------------------------

    def going(self, going: Sequence[Range] | None) -> list[int]:
        """What the importer maps that lies in `going`, with every byte that is visible; None: all of it."""
        if going is None:
            return list(self.held)
        base = self._tensor.base_address
        stays = {
            piece.allocation_id
            for piece in self._pieces()
            if subtract([(piece.base - base, piece.base - base + piece.nbytes)], going)
        }
        return [number for number in self.held if number not in stays]

    def unmap(self, ids: Sequence[int], *, asked: bool) -> str | None:
        """Have allocations unmapped; why the importer did not. `asked`: it may refuse."""
        for start in range(0, len(ids), MAX_IDS):
            batch = ids[start : start + MAX_IDS]
            if (refusal := self.question(Unmap(self.next(), asked, tuple(batch)))) is not None:
                return refusal
            for number in batch:
                del self.held[number]
        return None

    def send(self, pieces: Sequence[RegistrableSegment]) -> str | None:
        """Hand over allocations; why the importer did not take them."""
        base = self._tensor.base_address
        for start in range(0, len(pieces), BATCH):
            batch = pieces[start : start + BATCH]
            with ExitStack() as exports:
                handles = [exports.enter_context(self._tensor.export(piece, self._kind)).handle for piece in batch]
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
                refusal = self.question(Map(self.next(), entries), descriptors)
            if refusal is not None:
                return refusal
            self.held.update((piece.allocation_id, piece) for piece in batch)
        return None

    def show(self, event: str, snapshot: Snapshot) -> str | None:
        """Say what is committed now; why the importer does not show it."""
        return self.question(State(self.next(), event, snapshot.generation, snapshot.committed))

    def _pieces(self) -> tuple[RegistrableSegment, ...]:
        try:
            return self._tensor.registrable()
        except StateError:  # closed: there is nothing any more
            return ()

    # Asking ---------------------------------------------------------------------------------------------------------

    def question(self, frame: Map | Unmap | State, descriptors: Sequence[int] = ()) -> str | None:
        """Ask, and wait for the answer as long as it takes: whoever cannot wait cuts. None where it is done."""
        self._channel.send(frame, descriptors)
        answer: Frame = self._channel.expect(Ack, Refused)
        if isinstance(answer, Refused) and answer.number == 0:
            raise SharingError(f"leaves: {answer.reason}", peer=self._channel.peer, gone=True)
        if not isinstance(answer, Ack | Refused) or answer.number != frame.number:
            raise SharingError(f"answers {answer} to question {frame.number}", peer=self._channel.peer)
        return answer.reason if isinstance(answer, Refused) else None

    def next(self) -> int:
        """The number of the next question."""
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number
