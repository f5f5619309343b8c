"""Slots on plain torch memory, where VMM memory is not to be had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from vmmcache.cache.backing import Backing
from vmmcache.cache.plain_memory import PlainMemory
from vmmcache.cache.pools import PoolMap
from vmmcache.units import ADDRESSES, align_down

if TYPE_CHECKING:
    import torch

__all__ = ["PlainBacking"]


class PlainBacking(Backing):
    """Slots in torch storages, one for each segment, of exactly the committed bytes.

    Works on any device that torch has. Views survive `sleep` and `wake`, and growing, but find their memory at other
    addresses then: captured graphs have to be captured again, and what is leased cannot grow. Memory for slots that are
    not there yet cannot be had, so `views` are always exact. After a shrink, take `views` again: torch does not check
    that an old one still claims slots that are gone.

    Parameters
    ----------
    pools : PoolMap
        Its granule says what descriptors call aligned; sizes are exact whatever it is.
    capacity : int or sequence of int
        Most slots of each group, at least 1.
    device : str
        What torch calls it.
    device_type : str, optional
        What connectors call it; torch's word by default.

    Raises
    ------
    ConfigError
        An argument is wrong.
    DriverUnavailable
        torch is missing or cannot make a tensor on the device.
    """

    addresses_stay: ClassVar[bool] = False

    def __init__(
        self,
        pools: PoolMap,
        capacity: int | Sequence[int],
        device: str = "cpu",
        *,
        device_type: str | None = None,
    ) -> None:
        counts = pools.counts(capacity, minimum=1, field="capacity")
        # No addresses are set aside, so a capacity may be anything; but all of them have to be numbers of bytes.
        most = align_down(ADDRESSES // 2 // len(pools.segments), pools.granule)
        sizes = [min(size, most) for size in pools.capacities(counts)]
        self._plain = PlainMemory(sizes, pools.granule, device, device_type)
        super().__init__(pools, counts, self._plain)

    def _flats(self, *, exact: bool, only: int | None = None) -> dict[int, tuple[torch.Tensor, int, int]]:
        slots = self.slots
        return {
            index: (self._plain.segment_view(index), 0, slots[self.pools.segments[index].group])
            for index in (range(len(self.pools.segments)) if only is None else (only,))
        }
