"""Slots on VMM memory: addresses for the capacity at once, memory when it is known how much there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from vmmcache.cache.backing import Backing
from vmmcache.cache.pools import PoolMap
from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.plugins.host import open_driver

if TYPE_CHECKING:
    import torch

__all__ = ["VmmBacking"]


class VmmBacking(Backing):
    """Slots in the segments of one `vmmcache.ExtensibleTensor`.

    Views and captured graphs hold addresses that stay for life, whatever is committed behind them, also through
    `sleep` and `wake` (I1). Growing is allowed while connectors hold leases.

    Parameters
    ----------
    pools : PoolMap
        Its granule must be that of the device.
    capacity : int or sequence of int
        Slots of each group to reserve addresses for, at least 1; may be more than the device has memory for.
    device : str or VmmDriver
    chunk : int, optional
        Most bytes of an allocation, for caches that shrink often; see `vmmcache.ExtensibleTensor`.

    Raises
    ------
    ConfigError
        An argument is wrong.
    DriverError
        The device cannot be used, or refused to reserve that many addresses. Nothing is left.
    """

    addresses_stay: ClassVar[bool] = True

    def __init__(
        self,
        pools: PoolMap,
        capacity: int | Sequence[int],
        device: str | VmmDriver = "host",
        *,
        chunk: int | None = None,
    ) -> None:
        counts = pools.counts(capacity, minimum=1, field="capacity")
        driver = open_driver(device)
        if pools.granule != driver.granule:
            # What was planned in other granules is not what this device maps (I11).
            raise ConfigError(
                "pools", pools.granule, f"granule of the map; that of {driver.device} is {driver.granule}"
            )
        sizes = pools.capacities(counts)
        self.tensor: Final = ExtensibleTensor(sum(sizes), driver, sizes, chunk)
        super().__init__(pools, counts, self.tensor)

    def _flats(self, *, exact: bool, only: int | None = None) -> dict[int, tuple[torch.Tensor, int, int]]:
        indices = range(len(self.pools.segments)) if only is None else (only,)
        if exact:
            slots = self.slots
            return {
                index: (self.tensor.segment_view(index), 0, slots[self.pools.segments[index].group])
                for index in indices
            }
        whole, offsets = self.tensor.view(), self.tensor.segment_offsets
        return {index: (whole, offsets[index], self.capacity[self.pools.segments[index].group]) for index in indices}
