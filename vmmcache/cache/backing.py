"""Slots in memory: what the two kinds of backing have in common.

A backing holds the slots of every pool group in segments of one memory, which `vmmcache.cache.pools` describes: of VMM
memory (`vmmcache.cache.vmm_backing`), or of plain torch memory where that is not to be had
(`vmmcache.cache.plain_backing`). Whoever has one need not know which, but for two things that can be asked: whether
addresses stay for life (`Backing.addresses_stay`), and so whether views over slots that are not there yet can be had.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from vmmcache.cache.pools import Place, PoolMap
from vmmcache.cache.slot_contents import SlotContents
from vmmcache.cache.slot_memory import SlotMemory
from vmmcache.connectors.registrable import Registrable
from vmmcache.errors import ConfigError
from vmmcache.units import as_count

if TYPE_CHECKING:
    import torch

__all__ = ["Backing"]


class Backing(SlotContents, ABC):
    """Slots of every pool group, in memory.

    Parameters
    ----------
    pools : PoolMap
        Where in memory slots are.
    capacity : sequence of int
        Most slots of each group.
    memory : SlotMemory
        Has a segment of at least so many slots for each of the map's.
    """

    addresses_stay: ClassVar[bool]
    """Whether slots and views keep their addresses from construction to `close`, whatever happens in between."""

    def __init__(self, pools: PoolMap, capacity: Sequence[int], memory: SlotMemory) -> None:
        super().__init__(pools, memory)
        self.capacity: Final = tuple(capacity)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.slots} of {self.capacity} slots on {self._memory.device}, {self.state}>"
        )

    # What there is --------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> Registrable:
        """What connectors register."""
        return self._memory

    @property
    def state(self) -> str:
        """``"reserved"``, ``"committed"``, ``"asleep"`` or ``"closed"``."""
        return self._memory.state

    @property
    def nbytes(self) -> int:
        """Bytes of the slots that are backed."""
        return self._memory.committed_bytes

    @property
    def physical_bytes(self) -> int:
        """Bytes that the device has given for them."""
        return self._memory.physical_bytes

    # Views ----------------------------------------------------------------------------------------------------------

    def views(self, *, exact: bool = False) -> dict[str, dict[str, torch.Tensor]]:
        """Every buffer of every layer: layer name -> role -> uint8 tensor ``[slots, bytes of one block]``.

        A buffer with tokens_per_block of its own is ``[slots, rows, bytes of a row]``. Tensors are strided where a slot
        holds more than the buffer. Those of one segment share a storage.

        Parameters
        ----------
        exact : bool
            Only slots that are backed, in storages that are exactly the committed bytes of their segments (I6). By
            default all slots up to the capacity, where addresses stay; touching those that are not backed faults.

        Raises
        ------
        StateError
            The backing is closed.
        DriverUnavailable
            torch is missing or cannot make a tensor on the device.
        """
        flats = self._flats(exact=exact)
        return {
            layer: {role: self._strided(flats, place) for role, place in places.items()}
            for layer, places in self.pools.places.items()
        }

    def view(
        self,
        layer: str,
        role: str,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        *,
        exact: bool = False,
    ) -> torch.Tensor:
        """One buffer as a tensor ``[slots, *shape]`` of a type.

        Parameters
        ----------
        layer, role : str
        dtype : torch.dtype, optional
            uint8 by default.
        shape : sequence of int, optional
            What a slot holds, exactly; by default one dimension, or two as in `views`.
        exact : bool
            As for `views`.

        Raises
        ------
        ConfigError
            There is no such buffer, or type or shape do not fit it.
        """
        try:
            place = self.pools.places[layer][role]
        except KeyError:
            raise ConfigError(
                "layer, role", (layer, role), f"no such buffer among {len(self.pools.places)} layers"
            ) from None
        view = self._strided(self._flats(exact=exact, only=place.segment), place)
        if dtype is None and shape is None:
            return view
        return _typed(view, place, dtype or view.dtype, shape)

    @abstractmethod
    def _flats(self, *, exact: bool, only: int | None = None) -> dict[int, tuple[torch.Tensor, int, int]]:
        """For each segment (or only one): a flat uint8 tensor, where in it the segment begins, and how many slots."""

    @staticmethod
    def _strided(flats: dict[int, tuple[torch.Tensor, int, int]], place: Place) -> torch.Tensor:
        flat, start, slots = flats[place.segment]
        inner = [math.prod(place.shape[axis + 1 :]) for axis in range(len(place.shape))]
        return flat.as_strided((slots, *place.shape), (place.stride, *inner), start + place.offset)

    # Memory ---------------------------------------------------------------------------------------------------------

    def commit(
        self, slots: int | Sequence[int], *, defragment: bool = False, keep: bool = True, revoke: bool = False
    ) -> None:
        """Back exactly so many slots of each group. All or nothing, but for what is named below.

        New slots read as zero. Slots below both counts keep their contents.

        Parameters
        ----------
        slots : int or sequence of int
            For every group, or one number for each; 0 is fine.
        defragment : bool
            Make each segment one allocation of exactly the granules that it needs, as connectors want it.
        keep : bool
            False: contents may be lost, and no memory is needed for copying them.
        revoke : bool
            Make owners of leases that are in the way let go first.

        Raises
        ------
        ConfigError
            A number is wrong, or more than the capacity.
        StateError
            The backing is asleep or closed.
        LeaseError
            Bytes that would go away, or move, are leased.
        OutOfDeviceMemory, DriverError
            Refused. The backing is as it was, but for what `vmmcache.ExtensibleTensor.commit` names: where memory is
            given back, or exchanged without `keep`, `slots` says what is left, and the same call finishes.
        """
        counts = self.counts(slots)
        self._memory.commit(self.pools.sizes(counts), defragment, keep, revoke=revoke)

    def trim(self) -> None:
        """After fewer slots were committed: exchange allocations that straddle a cut, so that what is mapped is what
        the slots take (I11). Contents stay; needs room for a copy of one allocation.

        Raises
        ------
        LeaseError
            Such an allocation is leased.
        OutOfDeviceMemory, DriverError
            Refused. Some may have been exchanged; nothing is lost.
        """
        self._memory.trim()

    def counts(self, slots: int | Sequence[int]) -> tuple[int, ...]:
        """Slots of each group, checked against the capacity."""
        counts = self.pools.counts(slots)
        for group, (count, capacity) in enumerate(zip(counts, self.capacity, strict=True)):
            as_count(f"slots[{group}]", count, maximum=capacity, unit="slots")
        return counts

    def check_leases(self, *, revoke: bool = False) -> None:
        """See that nothing is leased, before something is done that cannot be taken back.

        Raises
        ------
        LeaseError
            Something is leased, also after `revoke` has made owners let go.
        """
        self._memory.check_leases(revoke=revoke)

    def sleep(self, backup: bool = False, revoke: bool = False) -> None:
        """Give all memory back and remember the counts. Views stay; touching them faults until `wake`.

        Raises
        ------
        StateError
            The backing is closed.
        LeaseError
            Something is leased.
        DriverError
            The driver refused to take memory back. The backing is asleep all the same; calling again finishes.
        """
        self._memory.release_physical(backup, revoke=revoke)

    def wake(self) -> None:
        """Back the same slots again, zeroed, or with their contents if there is a backup. Views are valid again.

        Raises
        ------
        StateError
            The backing is not asleep.
        OutOfDeviceMemory, DriverError
            Refused. The backing is still asleep, and a later call may succeed.
        """
        self._memory.restore()

    def close(self, revoke: bool = False) -> None:
        """Give everything back. The second time does nothing.

        Raises
        ------
        StateError
            Views are alive; says how many.
        LeaseError
            Something is leased.
        DriverError
            The driver refused to take something back; calling again goes on where it was.
        """
        self._memory.close(revoke=revoke)


def _typed(view: torch.Tensor, place: Place, dtype: torch.dtype, shape: Sequence[int] | None) -> torch.Tensor:
    size = dtype.itemsize
    for what, nbytes in ("offset", place.offset), ("stride", place.stride), ("row", place.shape[-1]):
        if nbytes % size:
            raise ConfigError("dtype", dtype, f"the {what} of {nbytes} bytes is no multiple of its {size} bytes")
    typed = view.view(dtype)
    if shape is None:
        return typed
    sizes = tuple(as_count(f"shape[{axis}]", length, unit="elements") for axis, length in enumerate(shape))
    if math.prod(sizes) * size != place.nbytes:
        raise ConfigError(
            "shape", shape, f"is {math.prod(sizes)} x {dtype}, and a slot holds {place.nbytes} bytes of it"
        )
    return typed.view(len(view), *sizes)
