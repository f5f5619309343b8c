"""ExtensibleTensor: segments that grow and shrink over one region, and exact views of them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from vmmcache.closing import ClosedOnExit
from vmmcache.connectors.leases import LeaseBook
from vmmcache.driver import VmmDriver
from vmmcache.memory.atlas.known import note
from vmmcache.memory.changes import Look, Observer, Observers
from vmmcache.memory.connectable import ConnectableSegments
from vmmcache.memory.lifetime import Lifetime
from vmmcache.memory.ranges import Range
from vmmcache.memory.region import Region
from vmmcache.memory.segmented import SegmentedRegion
from vmmcache.memory.segments import Segments
from vmmcache.memory.states import Event
from vmmcache.plugins.host import open_driver
from vmmcache.units import align_down, as_count

__all__ = ["ExtensibleTensor"]

_log: Final = logging.getLogger(__name__)


class ExtensibleTensor(ClosedOnExit, ConnectableSegments):
    """Device memory that grows and shrinks without moving.

    Addresses are reserved once, for `capacity` bytes, which may be more than the device has. Memory is committed
    later and appears behind them; `base_address` and every view keep their address until `close` (I1).

    The tensor is divided into segments, each of which grows as a prefix of its place: one segment for a cache that
    is laid out block by block, one per layer for a cache that is laid out layer by layer.

    Methods may be called from any thread; each is done as a whole before another begins. The device must be idle
    with respect to bytes that an operation takes away; vmmcache waits for it, but does not keep others from
    starting new work.

    Parameters
    ----------
    capacity : int
        Bytes of all segments together.
    device : str or VmmDriver
        ``"cuda:0"``, ``"host"``, ..., or a driver that is open already.
    segments : int or sequence of int
        A count of equal segments, or the size of each in bytes. Sizes need not be multiples of the granule.
    chunk : int, optional
        Most bytes of an allocation, for tensors that shrink often: an allocation goes back only as a whole.
        Rounded down to the granule. By default every growth of a segment is one allocation.

    Raises
    ------
    ConfigError
        A size is no whole number of bytes, or the sizes do not fit together.
    DriverUnavailable
        The device cannot be used; says why and what helps.
    DriverError
        The driver refused to reserve that many addresses.

    Examples
    --------
    >>> from vmmcache import ExtensibleTensor
    >>> tensor = ExtensibleTensor(1 << 40, device="host", segments=2)
    >>> tensor.commit(1 << 20)
    >>> tensor.committed
    (1048576, 1048576)
    >>> tensor.close()
    """

    def __init__(
        self,
        capacity: int,
        device: str | VmmDriver = "host",
        segments: int | Sequence[int] = 1,
        chunk: int | None = None,
    ) -> None:
        driver = open_driver(device)
        division = Segments(capacity, segments, driver.granule)
        if chunk is not None:
            chunk = align_down(as_count("chunk", chunk, minimum=driver.granule), driver.granule)
        leases = LeaseBook(driver.granule)
        region = Region(driver, division.capacity, guard=leases.guard, chunk=chunk)
        lifetime = Lifetime(region, leased=leases.__len__)
        leases.on_drop = lifetime.close_if_unused
        leases.on_count = region.meter.leases
        super().__init__(SegmentedRegion(region, division, leases.guard), leases, lifetime)
        note(region, self._memory, leases)
        self._observers: Final = Observers(repr(region))
        weakref.finalize(self, lifetime.abandon)

    def __repr__(self) -> str:
        return (
            f"<ExtensibleTensor on {self.device}, {self.committed_bytes} of {self.capacity} bytes committed in "
            f"{len(self.committed)} segments at {self.base_address:#x}, {self.state}>"
        )

    # Memory ---------------------------------------------------------------------------------------------------------

    def commit(
        self, nbytes: int | Sequence[int], defragment: bool = False, keep: bool = False, *, revoke: bool = False
    ) -> None:
        """Set how many bytes of each segment are backed by memory: grow, shrink, or both.

        Contents stay. New bytes read as zero (I7). Growing maps each maximal unmapped run of granules as one
        allocation. Shrinking gives back every allocation that lies wholly beyond the cut; one that straddles it
        stays and counts in `physical_bytes`. Growth comes first, so it cannot use what a shrink in the same call
        gives back.

        Parameters
        ----------
        nbytes : int or sequence of int
            Bytes for every segment, or one number for each. 0 is fine.
        defragment : bool
            Give each segment one allocation of exactly the granules that it needs, whatever `chunk` says;
            neighbours that share a granule get one together. A segment that has it is left alone. Contents of
            others are lost unless `keep`: their memory goes back first, segment by segment, because the new could
            not be had otherwise.
        keep : bool
            With `defragment`: copy the contents. Needs room for one segment beside what is there.
        revoke : bool
            Make owners of leases that are in the way let go first, by their callbacks.

        Raises
        ------
        ConfigError
            A size is no whole number, or more than its segment has; or there are not as many as segments.
        StateError
            The tensor is asleep or closed.
        LeaseError
            Bytes that would go away are leased.
        OutOfDeviceMemory, DriverError
            The driver refused. The tensor is as it was (I4), but for two cases. Where memory is being given *back*, the
            commit counts as done; what was refused stays in `physical_bytes`, and the next call tries again. With
            `defragment`, where segments are exchanged one after the other, one that was to shrink may have shrunk
            already; without `keep`, segments before the failure have their new size, and the one in the middle of its
            exchange has lost its contents. `committed` says what is left, and the same call finishes.
        """
        targets = self._memory.segments.targets(nbytes)
        with self._changing(Event.COMMIT, revoke, lambda: self._memory.doomed(targets, defragment=defragment)):
            self._memory.commit(targets, defragment=defragment, keep=keep)
        self._log_state()

    def trim(self) -> None:
        """Give back what straddles a cut: exchange each such allocation for one of just the granules that are needed.

        Contents stay, and so do addresses. Needs room for a copy of the one that is being exchanged, which `chunk`
        bounds; afterwards `physical_bytes` is what rounding `committed` to granules gives.

        Raises
        ------
        StateError
            The tensor is asleep or closed.
        LeaseError
            An allocation that straddles a cut is leased. Nothing has changed.
        OutOfDeviceMemory, DriverError
            The driver refused. Those before have been exchanged, the others are as they were. Only where it refuses to
            undo as well, bytes at the end of a segment are lost, and `committed` says what is left.
        """
        with self._changing(Event.COMMIT, doomed=self._memory.loose):
            self._memory.trim()
        self._log_state()

    def release_physical(self, backup: bool = False, *, revoke: bool = False) -> None:
        """Give all memory back and keep addresses and views. Until `restore`, touching them faults.

        Parameters
        ----------
        backup : bool
            Copy what is committed to host memory first, so that `restore` brings the contents back.
        revoke : bool
            Make owners of leases let go first, by their callbacks.

        Raises
        ------
        StateError
            The tensor is closed.
        LeaseError
            Something is leased.
        DriverError
            The driver refused to take memory back. The tensor is asleep all the same; calling again finishes.
        """
        with self._changing(Event.SLEEP, revoke, self._visible):
            self._memory.release(backup=backup)
        self._log_state()

    def restore(self) -> None:
        """Commit the same sizes again, in the same allocations at the same addresses, zeroed unless there is a backup.

        Raises
        ------
        StateError
            The tensor is not asleep.
        OutOfDeviceMemory, DriverError
            The driver refused. The tensor is still asleep, and a later call may succeed.
        """
        with self._changing(Event.WAKE):
            self._memory.restore()
        self._log_state()

    def close(self, *, revoke: bool = False) -> None:
        """Give memory and addresses back. The second time does nothing.

        Raises
        ------
        StateError
            Views of the tensor are alive; says how many. They would point into addresses that are anybody's then.
        LeaseError
            Something is leased.
        DriverError
            The driver refused to take something back; calling again goes on where it was.
        """
        self._check_views()
        with self._changing(Event.CLOSE, revoke, self._visible):
            self._check_views()
            self._memory.close()
        self._log_state()

    # Observers ------------------------------------------------------------------------------------------------------

    def on_change(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each `Change` of this tensor's memory: before bytes go, and after they came or went.

        `vmmcache.memory.changes` says in which order, in which thread, and what an observer's exception does: before,
        it refuses the operation (LeaseError); after, it is logged.

        Returns
        -------
        callable
            Ends it. The tensor holds the observer until then.
        """
        return self._observers.add(observer)

    def _changing(
        self, event: Event, revoke: bool = False, doomed: Callable[[], Sequence[Range]] = list
    ) -> AbstractContextManager[None]:
        going: Sequence[Range] = ()
        if revoke or self._observers:
            with self._region.gate.enter(event.value):
                going = doomed()
        return self._observers.around(
            event,
            going,
            self._look,
            # Outside the lock: an owner may have to wait for threads of its own that use this tensor.
            (lambda: self._leases.revoke(going)) if revoke else _nothing,
            self._region.gate.operation(event.value, self._memory.visible_bytes),
        )

    def _log_state(self) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%r, %d bytes mapped in %d allocations", self, self.physical_bytes, len(self.allocations))

    def _visible(self) -> Sequence[Range]:
        return self._segments.between(None, self.committed)

    def _look(self) -> Look:
        return Look(self._region.state, self.committed, self._region.generation)


def _nothing() -> None:
    """What is done before an operation that revokes no leases."""
