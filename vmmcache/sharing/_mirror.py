"""The importer's memory: what another process has, mapped at addresses of this one. No socket in here."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError, SharingError, StateError
from vmmcache.memory.atlas.known import note
from vmmcache.memory.ranges import Range
from vmmcache.memory.region import Offer, Region
from vmmcache.memory.segments import Segments
from vmmcache.sharing._wire import Entry, Welcome

__all__ = ["Holds", "Mirror"]


class Holds:
    """Threads that need what is mapped to stay for a while, and the one that waits until none does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders: list[int] = []
        self._waiting = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep what is mapped. Waits where something is about to be unmapped: who comes then sees what is left."""
        me = threading.get_ident()
        with self._changed:
            # Not for those that hold already: they would wait for themselves.
            self._changed.wait_for(lambda: not self._waiting or me in self._holders)
            self._holders.append(me)
        try:
            yield
        finally:
            with self._changed:
                self._holders.remove(me)
                self._changed.notify_all()

    @property
    def ours(self) -> bool:
        """Whether the calling thread holds."""
        return threading.get_ident() in self._holders

    @contextmanager
    def none(self) -> Iterator[None]:
        """When nobody holds any more, and nobody begins to meanwhile."""
        with self._changed:
            if self.ours:
                raise StateError(
                    "this thread holds the memory that it is asked to let go; leave the hold first",
                    state="held",
                    event="unmap",
                )
            self._waiting = True
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._holders)
            yield
        finally:
            with self._changed:
                self._waiting = False
                self._changed.notify_all()


class Mirror:
    """What is mapped of the exporter's tensor, and how much of it is committed there.

    Everything that the exporter says is checked before it is done: an exporter that is wrong, or malicious, is a
    SharingError, and the memory stays as it was.
    """

    def __init__(self, driver: VmmDriver, welcome: Welcome, *, writable: bool, peer: str) -> None:
        self._peer = peer
        self._writable = writable
        self._check(driver, welcome)
        self.segments: Final = self._divide(welcome, driver.granule)
        self.region: Final = Region(driver, welcome.capacity, guard=_no_veto)
        self.held: dict[int, Range] = {}
        """What is mapped, by the exporter's number of the allocation."""
        self.generation = 0
        self._committed = [0] * len(self.segments)
        note(self.region, self)

    @property
    def committed(self) -> tuple[int, ...]:
        """Bytes of each segment that are mapped, and committed by the exporter."""
        return tuple(self._committed)

    def map(self, entries: Sequence[Entry], descriptors: Iterable[int]) -> None:
        """Map allocations at their places: all, or none."""
        offers, left = [], list(descriptors)
        with self.region.gate.operation("map"):
            for place, entry in enumerate(entries):
                self._check_entry(entry, entries[:place])
                if not entry.fabric and not left:
                    raise self._wrong(f"sent no descriptor for allocation {entry.id}")
                shared: int | bytes = entry.fabric or left.pop(0)
                offers.append(Offer(entry.offset, entry.nbytes, shared, "fabric" if entry.fabric else "posix_fd"))
            if left:
                raise self._wrong(f"sent {len(left)} descriptors that belong to no allocation")
            try:
                self.region.adopt(offers, writable=self._writable)
            except ConfigError as error:
                raise self._wrong(f"sent what is no such memory: {error}") from error
            self.held.update((entry.id, (entry.offset, entry.offset + entry.nbytes)) for entry in entries)

    def unmap(self, ids: Sequence[int]) -> None:
        """Unmap allocations. What lies behind the first byte that goes is not visible any more."""
        with self.region.gate.operation("unmap", committed=self._visible_bytes):
            self.going(ids)
            gone = set(ids)
            rest = {number: extent for number, extent in self.held.items() if number not in gone}
            try:
                if rest:
                    self.region.retain(sorted(rest.values()))
                else:
                    # All of it, and where the device keeps memory as long as its addresses are reserved, that too.
                    self.region.sleep(())
            finally:
                self.held = rest
                for index, start in enumerate(self.segments.offsets):
                    self._committed[index] = self.region.backed(start, start + self._committed[index]) - start

    def going(self, ids: Sequence[int]) -> tuple[Range, ...]:
        """Where allocations are that are to be unmapped."""
        if unknown := [number for number in ids if number not in self.held]:
            raise self._wrong(f"wants allocation {unknown[0]} unmapped, which it did not send")
        return tuple(sorted(self.held[number] for number in ids))

    def commit(self, committed: Sequence[int], generation: int) -> None:
        """Show so many bytes of each segment."""
        with self.region.gate.enter("commit"):
            sizes = self.segments.sizes
            if len(committed) != len(sizes) or any(new > size for new, size in zip(committed, sizes, strict=True)):
                raise self._wrong(
                    f"says that {list(committed)[:4]} bytes of segments of {list(sizes)[:4]} are committed"
                )
            for start, nbytes in zip(self.segments.offsets, committed, strict=True):
                if self.region.backed(start, start + nbytes) < start + nbytes:
                    raise self._wrong(f"says that {nbytes} bytes at {start} are committed, and has not sent them")
            self._committed = list(committed)
            self.generation = generation
            self.region.meter.show(self._visible_bytes())

    def _visible_bytes(self) -> int:
        return sum(self._committed)

    def close(self) -> None:
        """Give everything back, the addresses last."""
        with self.region.gate.operation("close", committed=self._visible_bytes):
            self.region.close()
            self.held, self._committed = {}, [0] * len(self.segments)

    # ----------------------------------------------------------------------------------------------------------------

    def _check(self, driver: VmmDriver, welcome: Welcome) -> None:
        if welcome.device_type != driver.device_type:
            raise SharingError(
                f"shares memory of {welcome.device_type!r}, and {driver.device} is {driver.device_type!r}",
                peer=self._peer,
                cure="Connect with the exporter's device",
            )
        if not welcome.granule or welcome.granule % driver.granule:
            raise SharingError(
                f"maps in granules of {welcome.granule} bytes, and {driver.device} in those of {driver.granule}",
                peer=self._peer,
            )

    def _divide(self, welcome: Welcome, granule: int) -> Segments:
        try:
            return Segments(welcome.capacity, welcome.segments, granule)
        except ConfigError as error:
            raise self._wrong(f"describes segments that cannot be: {error}") from error

    def _check_entry(self, entry: Entry, before: Sequence[Entry]) -> None:
        stop, granule = entry.offset + entry.nbytes, self.region.granule
        if entry.offset % granule or entry.nbytes % granule or not entry.nbytes or stop > self.region.nbytes:
            raise self._wrong(
                f"wants {entry.nbytes} bytes at {entry.offset} of {self.region.nbytes}, in granules of {granule}"
            )
        if self.region.touched_by([(entry.offset, stop)]) or any(
            other.offset < stop and entry.offset < other.offset + other.nbytes for other in before
        ):
            raise self._wrong(f"wants {entry.nbytes} bytes at {entry.offset}, where something is mapped")
        if entry.id in self.held or any(other.id == entry.id for other in before):
            raise self._wrong(f"sent allocation {entry.id} twice")

    def _wrong(self, problem: str) -> SharingError:
        return SharingError(problem, peer=self._peer)


def _no_veto(_: Sequence[Range]) -> None:
    """Nobody holds leases on memory that another process may take away."""
