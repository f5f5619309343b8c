"""Who holds which range.

A connector registers memory with a NIC once and trusts it for hours. Neither the kernel, nor the vendor's driver,
nor the NIC refuses to unmap what is registered, and afterwards transfers go on "succeeding" into pages that nobody
sees. So a lease is the only guard there is: as long as it lives, every operation that would unmap or cut off a
byte of its range is refused.

A lease owns whole granules, because that is what a registration pins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from vmmcache.errors import LeaseError
from vmmcache.units import align_down, align_up, format_bytes

__all__ = ["LeaseBook", "RegistrationLease"]


class RegistrationLease:
    """The promise that a range stays as it is until `release`. Also a context manager.

    Attributes
    ----------
    owner : str
    segment_index : int
    address, nbytes : int
        The leased bytes.
    generation : int
        The tensor's generation when the lease was taken.
    """

    def __init__(
        self,
        book: LeaseBook,
        *,
        owner: str,
        segment_index: int,
        start: int,
        address: int,
        nbytes: int,
        generation: int,
        on_revoke: Callable[[RegistrationLease], object] | None,
    ) -> None:
        self.owner: Final = owner
        self.segment_index: Final = segment_index
        self.address: Final = address
        self.nbytes: Final = nbytes
        self.generation: Final = generation
        self._on_revoke = on_revoke
        self._book = book
        self._start: Final = start

    def __repr__(self) -> str:
        state = "valid" if self.valid else "released"
        return f"<RegistrationLease of {self.owner!r} on segment {self.segment_index}, {self.nbytes} bytes, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def valid(self) -> bool:
        """Whether the promise still holds."""
        return self._book.holds(self)

    def release(self) -> None:
        """Give the promise back; the second time does nothing. From any thread."""
        self._book.drop(self)

    def shorten(self, going: Sequence[tuple[int, int]]) -> RegistrationLease | None:
        """Give back what shares a granule with any of `going`, and all behind; there is no moment without the rest.

        For an owner who is asked to let go of a part, and keeps what is before it.

        Parameters
        ----------
        going : sequence of (int, int)
            Addresses, each range from the first to the one behind the last.

        Returns
        -------
        RegistrationLease or None
            What is left of it, as a lease of its own; None where nothing is, or this one was given back before.
        """
        return self._book.shorten(self, going)


class LeaseBook:
    """The leases of one tensor. Ranges are byte offsets from its base."""

    def __init__(self, granule: int) -> None:
        self._granule = granule
        self.on_drop: Callable[[], object] = _nothing
        """Called after a lease was given back, outside the lock."""
        self.on_count: Callable[[int], object] = _uncounted
        """Called with the number of leases whenever it changes, inside the lock."""
        # Re-entrant: a view that dies while this is held may end the life of another tensor, and look into its book.
        self._lock = threading.RLock()
        # By identity, in the order taken; a dict, so that release costs the same with ten thousand others.
        self._leases: dict[int, RegistrationLease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, lease: RegistrationLease) -> None:
        """Enter a lease."""
        with self._lock:
            self._leases[id(lease)] = lease
            self.on_count(len(self._leases))

    def holds(self, lease: RegistrationLease) -> bool:
        """Whether a lease is entered."""
        return self._leases.get(id(lease)) is lease

    def drop(self, lease: RegistrationLease) -> None:
        """Take a lease out, if it is in."""
        with self._lock:
            known = self._leases.pop(id(lease), None)
            if known is not None:
                self.on_count(len(self._leases))
        if known is not None:
            self.on_drop()

    def shorten(self, lease: RegistrationLease, going: Sequence[tuple[int, int]]) -> RegistrationLease | None:
        """Exchange a lease for one that ends before the first granule that it shares with `going` (addresses)."""
        base, end = lease.address - lease._start, lease._start + lease.nbytes
        first, beyond = self._whole(lease._start, end)
        ranges = (self._whole(start - base, stop - base) for start, stop in going)
        nbytes = min([end, *(start for start, stop in ranges if start < beyond and first < stop)]) - lease._start
        left = None
        with self._lock:
            if self.holds(lease) and nbytes > 0:
                left = RegistrationLease(
                    self,
                    owner=lease.owner,
                    segment_index=lease.segment_index,
                    start=lease._start,
                    address=lease.address,
                    nbytes=nbytes,
                    generation=lease.generation,
                    on_revoke=lease._on_revoke,
                )
                self.take(left)
        self.drop(lease)
        return left

    def on(self, segment_index: int) -> tuple[RegistrationLease, ...]:
        """Leases on one segment, in the order taken."""
        with self._lock:
            return tuple(lease for lease in self._leases.values() if lease.segment_index == segment_index)

    def all(self) -> tuple[RegistrationLease, ...]:
        """Every lease, in the order taken."""
        with self._lock:
            return tuple(self._leases.values())

    def touching(self, ranges: Sequence[tuple[int, int]]) -> list[RegistrationLease]:
        """Leases that share a granule with any of `ranges`, in the order taken."""
        if not self._leases or not ranges:
            return []
        with self._lock:
            leases = list(self._leases.values())
        wanted = sorted((self._whole(*span) for span in ranges), reverse=True)
        found = set()
        # Both sorted by start: the ranges still open are a stack, and each lease looks at most once at each that ended.
        for lease in sorted(leases, key=lambda lease: lease._start):
            start, stop = self._whole(lease._start, lease._start + lease.nbytes)
            while wanted and wanted[-1][1] <= start:
                wanted.pop()
            if wanted and wanted[-1][0] < stop:
                found.add(id(lease))
        return [lease for lease in leases if id(lease) in found]

    def guard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Raise LeaseError where a lease shares a granule with one of `ranges`."""
        if holders := self.touching(ranges):
            owners = tuple(dict.fromkeys(lease.owner for lease in holders))
            first = holders[0]
            deaf = dict.fromkeys(lease.owner for lease in holders if lease._on_revoke is None)
            cure = (
                f"release them; revoke=True does not reach {', '.join(deaf)}, for want of an on_revoke"
                if deaf
                else "release them, or pass revoke=True to make their owners let go"
            )
            leases, hold = ("leases", "hold") if len(holders) > 1 else ("lease", "holds")
            raise LeaseError(
                f"{len(holders)} {leases} of {', '.join(owners)} {hold} bytes that would go away, the first "
                f"{format_bytes(first.nbytes)} at {first.address:#x} in segment {first.segment_index}; {cure}",
                owners=owners,
            )

    def revoke(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Tell the owners of leases on `ranges` to let go. A callback that returns has let go; one that raises has not.

        Leases without a callback stay: their owner could not be told, and `guard` will name it.
        """
        for lease in self.touching(ranges):
            if lease._on_revoke is None or not lease.valid:
                continue
            try:
                lease._on_revoke(lease)
            except Exception as error:  # the owner's code may raise anything; that it did is the refusal
                raise LeaseError(
                    f"{lease.owner} did not let go of segment {lease.segment_index}: {type(error).__name__}: {error}",
                    owners=(lease.owner,),
                ) from error
            self.drop(lease)

    def _whole(self, start: int, stop: int) -> tuple[int, int]:
        return align_down(start, self._granule), align_up(stop, self._granule)


def _nothing() -> None:
    """What happens when a lease is given back and nobody waits for it."""


def _uncounted(_: int) -> None:
    """Where nobody counts leases."""
