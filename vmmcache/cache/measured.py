"""The measured path: addresses for the largest cache at once, memory when it is known how much there is (S2)."""

from __future__ import annotations

import warnings
from typing import ClassVar, Final

from vmmcache.cache.budget import Mode
from vmmcache.cache.counts import plan_for, with_counts
from vmmcache.cache.fitting import fit
from vmmcache.cache.path import Path
from vmmcache.cache.settings import Settings
from vmmcache.cache.shared import SharedDevice
from vmmcache.cache.sizing import measured_budget
from vmmcache.cache.snapshots import MemoryReader
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.driver import VmmDriver
from vmmcache.planning import Plan, PlanWarning
from vmmcache.planning.footprint import footprint_of
from vmmcache.planning.limits import MAX_SLOTS
from vmmcache.units import align_down, align_up

__all__ = ["Measured"]


class Measured(Path):
    """A cache on VMM memory.

    Parameters
    ----------
    settings : Settings
    shared : SharedDevice
        Has the snapshot from the start.
    driver : VmmDriver
        Of the device.
    reader : MemoryReader
        Of the device.

    Raises
    ------
    PlanError, ConfigError
        What was declared could not even be had on a device of which nothing is in use.
    DriverError
        The driver refused that many addresses. Nothing is left.
    """

    mode: ClassVar[Mode] = "measured"

    def __init__(self, settings: Settings, shared: SharedDevice, driver: VmmDriver, reader: MemoryReader) -> None:
        super().__init__(settings, shared, reader, driver.granule)
        self._device: Final = driver.device
        self.keeps_memory = driver.keeps_memory
        self.plan = self._largest()
        self.capacity = self._reserved()
        chunk = None if self.aligned else max(settings.chunk, driver.granule)
        self.backing = VmmBacking(self.pools, self.capacity, driver, chunk=chunk)

    @property
    def device(self) -> str:
        """The device string."""
        return self._device

    def first(self) -> tuple[int, ...]:
        """One: block 0, to which the tables of dummy work point."""
        return (1,) * len(self.pools.groups)

    def most(self) -> tuple[int, ...]:
        """The addresses there are."""
        if self.aligned:
            return tuple(map(align_down, self.capacity, self.pools.alignments))
        return self.capacity

    def _reserved(self) -> tuple[int, ...]:
        """Slots to reserve addresses for, which is all that they cost: at least those of the largest plan.

        Another quota splits otherwise. Where a group just misses a step, what that takes is the others': with states in
        one group and blocks in another this may be hundreds of blocks.
        """
        plan = self.plan
        footprint = footprint_of(plan.layout, plan.granule, plan.arrangement, self.aligned)
        steps = [footprint.granules(group, 1) for group in range(len(plan.groups))]
        capacity = []
        for group, (planned, step) in enumerate(zip(plan.groups, self.pools.alignments, strict=True)):
            spare = max((each for other, each in enumerate(steps) if other != group), default=0)
            most = footprint.most_slots(group, footprint.granules(group, planned.slots) + spare)
            capacity.append(min(align_up(max(most, planned.slots + 1), step), align_down(MAX_SLOTS, step) or MAX_SLOTS))
        return tuple(capacity)

    def _largest(self) -> Plan:
        """The plan for all that the device could ever give: addresses cost nothing, and free memory is for later."""
        stated = self.settings.budget
        with warnings.catch_warnings():
            # What shrinks, shrinks when the size is known, and that is when to tell.
            warnings.simplefilter("ignore", PlanWarning)
            if (counts := stated.slots_of(len(self.pools.groups))) is not None:
                return with_counts(plan_for(self.inputs, counts, self.pools.footprint(counts)), counts)
            if stated.nbytes is not None:
                return fit(self.inputs, stated.nbytes)
            share = self.shared.budget.utilization_on(self.mode)
            total = self.shared.start.total * share.numerator // share.denominator
            # Nothing is taken off it, so that of all knobs only utilization is one.
            budget = measured_budget(self.shared.budget, self.shared.start, self.shared.start, 0)
            budget = budget._replace(margin=0, limited_by="utilization")
            return fit(self.inputs, max(total, self.pools.granule), budget=budget)
