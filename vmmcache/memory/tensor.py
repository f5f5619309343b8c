"""ExtensibleTensor: segments that grow and shrink over one region, and exact views of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from vmmcache.connectors.leases import LeaseBook, RegistrationLease
from vmmcache.driver import Allocation, VmmDriver
from vmmcache.errors import ConfigError, StaleSegment, StateError, VmmCacheError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.lifetime import Lifetime
from vmmcache.memory.region import Region
from vmmcache.memory.segmented import SegmentedRegion
from vmmcache.memory.segments import Segments
from vmmcache.memory.states import Event, State
from vmmcache.memory.views import as_tensor
from vmmcache.plugins.host import open_driver
from vmmcache.units import align_down, as_count

if TYPE_CHECKING:
    import torch

__all__ = ["ExtensibleTensor"]


class ExtensibleTensor:
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
        self._leases: Final = LeaseBook(driver.granule)
        self._region: Final = Region(driver, capacity, guard=self._leases.guard, chunk=chunk)
        self._memory: Final = SegmentedRegion(self._region, division, self._leases.guard)
        self._lifetime: Final = Lifetime(self._region, leased=self._leases.__len__)
        self._leases.on_drop = self._lifetime.close_if_unused
        weakref.finalize(self, self._lifetime.abandon)

    def __repr__(self) -> str:
        return (
            f"<ExtensibleTensor on {self.device}, {self.committed_bytes} of {self.capacity} bytes committed in "
            f"{len(self.committed)} segments at {self.base_address:#x}, {self.state}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except VmmCacheError as refusal:
            if error is None:
                raise
            # The error of the block is the one that matters; its frames may hold the very views that forbid to close.
            error.add_note(f"not closed: {refusal}")

    # What there is --------------------------------------------------------------------------------------------------

    @property
    def driver(self) -> VmmDriver:
        """The driver that memory comes from."""
        return self._region.driver

    @property
    def device(self) -> str:
        """The device string, for example ``"cuda:0"``."""
        return self._region.driver.device

    @property
    def state(self) -> str:
        """``"reserved"``, ``"committed"``, ``"asleep"`` or ``"closed"``; see `vmmcache.memory.states`."""
        return self._region.state.value

    @property
    def base_address(self) -> int:
        """Address of the first byte of segment 0."""
        return self._region.base

    @property
    def capacity(self) -> int:
        """Bytes of all segments together, committed or not."""
        return sum(self._memory.segments.sizes)

    @property
    def granule(self) -> int:
        """Bytes of the unit in which memory is mapped on this device."""
        return self._region.granule

    @property
    def generation(self) -> int:
        """A number that rises whenever committed bytes go away, also if others come to the same address (C4)."""
        return self._region.generation

    @property
    def segment_sizes(self) -> tuple[int, ...]:
        """Capacity of each segment in bytes."""
        return self._memory.segments.sizes

    @property
    def segment_offsets(self) -> tuple[int, ...]:
        """Where each segment begins, in bytes from `base_address`."""
        return self._memory.segments.offsets

    @property
    def committed(self) -> tuple[int, ...]:
        """Committed bytes of each segment; all 0 while asleep."""
        return self._memory.committed

    @property
    def committed_bytes(self) -> int:
        """Sum of `committed`."""
        return sum(self.committed)

    @property
    def physical_bytes(self) -> int:
        """Bytes of all `allocations`: `committed_bytes`, and what rounding to granules and straddling a cut add."""
        with self._region.gate.lock:
            return self._region.physical_bytes

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """Live allocations, by address; also what the driver once refused to take back and is still owed."""
        with self._region.gate.lock:
            return self._region.allocations

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
        if revoke:
            with self._region.gate.enter("commit"):
                doomed = self._memory.doomed(targets, defragment=defragment)
            self._leases.revoke(doomed)
        with self._region.gate.operation("commit"):
            self._memory.commit(targets, defragment=defragment, keep=keep)

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
        self._revoke_all(revoke, "release_physical")
        with self._region.gate.operation("release_physical"):
            self._memory.release(backup=backup)

    def restore(self) -> None:
        """Commit the same sizes again, in the same allocations at the same addresses, zeroed unless there is a backup.

        Raises
        ------
        StateError
            The tensor is not asleep.
        OutOfDeviceMemory, DriverError
            The driver refused. The tensor is still asleep, and a later call may succeed.
        """
        with self._region.gate.operation("restore"):
            self._memory.restore()

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
        self._revoke_all(revoke, "close")
        with self._region.gate.operation("close"):
            self._check_views()
            self._memory.close()

    def _check_views(self) -> None:
        if (views := self._lifetime.views) and self._region.state is not State.CLOSED:
            raise StateError(
                f"{self!r} has {views} live views; delete them, and what was made of them, before close()",
                state=self.state,
                event=Event.CLOSE.value,
            )

    # Views ----------------------------------------------------------------------------------------------------------

    def view(self, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None) -> torch.Tensor:
        """A torch tensor over the whole reservation, committed or not, for layouts made before memory is there.

        Touching bytes that are not committed faults. Never hand it to a connector, and never copy or save it whole.

        Parameters
        ----------
        dtype : torch.dtype, optional
            uint8 by default.
        shape : sequence of int, optional
            As many elements as fit, in one dimension, by default.

        Raises
        ------
        ConfigError
            `dtype` or `shape` do not fit.
        StateError
            The tensor is closed.
        DriverUnavailable
            torch is missing or cannot make a tensor on the device.
        """
        with self._region.gate.enter("view"):
            return self._view(0, self.capacity, dtype, shape)

    def segment_view(
        self, i: int, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A torch tensor whose storage is exactly the committed bytes of segment `i` (I6).

        Parameters and errors are those of `view`; a shape that needs fewer bytes is a view into that storage.
        """
        index = self._memory.segments.index(i)
        with self._region.gate.enter("view"):
            return self._view(self.segment_offsets[index], self.committed[index], dtype, shape)

    def _view(self, start: int, nbytes: int, dtype: torch.dtype | None, shape: Sequence[int] | None) -> torch.Tensor:
        self._check_open("view")
        make_capsule = partial(self._lifetime.capsule, start, nbytes)
        return as_tensor(make_capsule, self.base_address + start, nbytes, dtype, shape, self.driver.torch_device)

    # Connectors -----------------------------------------------------------------------------------------------------

    def registrable(self) -> tuple[RegistrableSegment, ...]:
        """What a connector may register: one descriptor per allocation run of each committed segment, by address.

        Growth appends to each segment's descriptors and leaves those before as they were.
        """
        with self._region.gate.enter("registrable"):
            self._check_open("registrable")
            return tuple(self._memory.registrable())

    def check(self, segment: RegistrableSegment) -> None:
        """See that a descriptor still describes this tensor's memory.

        Raises
        ------
        StaleSegment
            The tensor has given memory back since the descriptor was made, even if other memory is there now.
        """
        if not isinstance(segment, RegistrableSegment):
            raise ConfigError("segment", segment, "must be a RegistrableSegment of this tensor")
        with self._region.gate.enter("check"):
            inside = (
                self.base_address <= segment.base and segment.base + segment.nbytes <= self.base_address + self.capacity
            )
            if segment.generation != self.generation or self._region.state is not State.COMMITTED or not inside:
                raise StaleSegment(
                    f"{segment.nbytes} bytes at {segment.base:#x} were described in generation {segment.generation}; "
                    f"{self!r} is in generation {self.generation}. Take registrable() again and register that",
                    owners=tuple(lease.owner for lease in self._leases.on(segment.segment_index)),
                )

    def lease(
        self, i: int, owner: str, on_revoke: Callable[[RegistrationLease], object] | None = None
    ) -> RegistrationLease:
        """Promise `owner` that what segment `i` has committed now stays as it is, until the lease is released.

        Growth is allowed meanwhile, and so is everything that touches no granule of the leased bytes.

        Parameters
        ----------
        i : int
        owner : str
            Named in every refusal.
        on_revoke : callable, optional
            Called with the lease by ``revoke=True``, before anything is touched. It must have let go of the memory
            when it returns; an exception is a refusal. A lease without one can only be released by its owner.

        Raises
        ------
        StateError
            Segment `i` has nothing committed, or the tensor is asleep or closed.
        """
        index = self._memory.segments.index(i)
        _check_owner(owner)
        if on_revoke is not None and not callable(on_revoke):
            raise ConfigError("on_revoke", on_revoke, "must be callable")
        with self._region.gate.enter("lease"):
            self._region.advance(Event.LEASE)
            if not (nbytes := self.committed[index]):
                raise StateError(
                    f"segment {index} of {self!r} has nothing committed; commit before you lease",
                    state=self.state,
                    event=Event.LEASE.value,
                )
            start = self.segment_offsets[index]
            lease = RegistrationLease(
                self._leases,
                owner=owner,
                segment_index=index,
                start=start,
                address=self.base_address + start,
                nbytes=nbytes,
                generation=self.generation,
                on_revoke=on_revoke,
            )
            self._leases.take(lease)
            return lease

    def _revoke_all(self, revoke: bool, event: str) -> None:
        # Outside the lock: an owner may have to wait for threads of its own that use this tensor.
        if revoke:
            self.driver.check_process(event)
            self._leases.revoke([(0, self.capacity)])

    def _check_open(self, event: str) -> None:
        if self._region.state is State.CLOSED:
            raise StateError(f"{self!r} does not allow {event}(); make a new one", state=self.state, event=event)


def _check_owner(owner: object) -> None:
    if not isinstance(owner, str) or not owner:
        raise ConfigError("owner", owner, "must be a name that refusals can show")
