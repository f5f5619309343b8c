"""The estimated path: a temporary pool to profile with, and the final one from what that showed (S4).

The temporary pool holds one step of the runtime's chunk, shortened where its quota has no room for it; that is what
profiling runs, and an estimate by tokens has been wrong by gigabytes (TensorRT-LLM pull request 16311). Its floors end
with it: the final pool is planned from the configuration that the caller gave.
"""

from __future__ import annotations

import logging
from typing import ClassVar, Final

from vmmcache.cache.budget import Mode
from vmmcache.cache.counts import plan_for, with_counts
from vmmcache.cache.fitting import fit
from vmmcache.cache.path import Path
from vmmcache.cache.plain_backing import PlainBacking
from vmmcache.cache.settings import Settings
from vmmcache.cache.shared import SharedDevice
from vmmcache.cache.snapshots import MemoryReader
from vmmcache.errors import QuotaError
from vmmcache.planning import Batch, Plan, Request
from vmmcache.planning.limits import MAX_SIZE, MAX_SLOTS
from vmmcache.units import format_bytes

__all__ = ["EXACT", "Estimated"]

EXACT: Final = 1
"""Bytes in which torch is asked for memory: exactly what is needed (S4)."""

_log: Final = logging.getLogger(__name__)


class Estimated(Path):
    """A cache on plain torch memory.

    Parameters
    ----------
    settings : Settings
    shared : SharedDevice
        Has the snapshot from the start.
    reader : MemoryReader
        Of the device.
    torch_device : str
        What torch calls the device.

    Raises
    ------
    PlanError, ConfigError
        Not even a step of one token fits into what may be used.
    """

    mode: ClassVar[Mode] = "estimated"

    def __init__(self, settings: Settings, shared: SharedDevice, reader: MemoryReader, torch_device: str) -> None:
        super().__init__(settings, shared, reader, EXACT)
        self._least, self.plan = self._temporary()
        self.capacity = tuple(group.slots for group in self.plan.groups)
        # Nothing is set aside for these; they are what no device of this size can exceed.
        total = shared.start.total
        most = (
            max(count, min(MAX_SLOTS, total // sum(group.slot_bytes)))
            for count, group in zip(self.capacity, self.plan.groups, strict=True)
        )
        self.backing = PlainBacking(self.pools, tuple(most), torch_device)

    @property
    def device(self) -> str:
        """The device string."""
        return self.settings.device

    def first(self) -> tuple[int, ...]:
        """What a step of the chunk needs."""
        return self._least

    def most(self) -> tuple[int, ...]:
        """No addresses are set aside, so none run out."""
        return self.backing.capacity

    def _temporary(self) -> tuple[tuple[int, ...], Plan]:
        """Slots of a step, and the plan of all that the temporary quota allows."""
        budget = self.settings.budget
        if (counts := budget.slots_of(len(self.pools.groups))) is not None:
            nbytes = self.pools.footprint(counts)
            plan_for(self.inputs._replace(constraints=()), counts, nbytes)  # or nothing runs, and this says so
            return counts, with_counts(self._shortened(nbytes), counts)
        quota = self.shared.bound(self.reader, self.mode) if budget.nbytes is None else budget.nbytes
        try:
            plan = self._shortened(max(quota, 1))
        except QuotaError as refusal:
            if budget.nbytes is not None:
                block = _at_most(self.settings.step, self.settings.layout.tokens_per_block)
                fit(self.inputs._replace(constraints=block), budget.nbytes)  # the same, to whoever stated the bytes
                raise
            raise self._no_room(quota, refusal) from None
        return tuple(group.min_slots for group in plan.groups), plan

    def _no_room(self, quota: int, refusal: QuotaError) -> QuotaError:
        """The planner's refusal in the words of whoever can turn something: nobody has configured this quota."""
        start, settings = self.shared.start, self.shared.budget
        chunk = _at_most(self.settings.step, self.settings.layout.tokens_per_block)
        least = self.inputs._replace(constraints=chunk).plan(None).nbytes
        return QuotaError(
            f"{self.device}: the temporary pool, in which a step is profiled, gets {quota} bytes "
            f"({format_bytes(quota)}) of {format_bytes(start.headroom)} that are free ({start.source} says so): a "
            f"margin of {format_bytes(settings.margin_floor)}, {float(settings.warmup_reserve):.0%} for what runs, and "
            f"{format_bytes(settings.encoder_reserve)} for an encoder stay free, and utilization is "
            f"{float(settings.utilization_on(self.mode)):g}. {least} bytes "
            f"({format_bytes(least)}) are needed for a step of one block. Free memory that others hold, lower "
            "margin_floor or warmup_reserve, declare fewer requests, or state a size with nbytes or slots",
            needed=least,
            usable=quota,
            configured=quota,
            cause=refusal.cause,
            group=refusal.group,
            constraint=refusal.constraint,
        )

    def _shortened(self, quota: int) -> Plan:
        """The plan for the chunk, each of its requests shortened to the most blocks with which all fit.

        Not by FIT_TO_QUOTA: that keeps what a step writes, and of a prompt's step that is all of it.
        """
        chunk = self.settings.step
        try:
            return self._plan(chunk, quota)
        except QuotaError as refusal:
            longest = max((request.capacity for batch in chunk for request in batch.requests), default=0)
            block = self.settings.layout.tokens_per_block
            low, high = 0, -(-longest // block)
            while low < high - 1:
                middle = (low + high) // 2
                try:
                    self._plan(_at_most(chunk, middle * block), quota)
                except QuotaError:
                    high = middle
                else:
                    low = middle
            if not low:
                raise
            _log.warning(
                "%s: the temporary pool of %d bytes holds requests of %d tokens, and steps of up to %d were declared, "
                "which need %d; profile with as many as fit",
                self.device,
                quota,
                low * block,
                longest,
                refusal.needed,
            )
            return self._plan(_at_most(chunk, low * block), quota)

    def _plan(self, constraints: tuple[Batch, ...], quota: int) -> Plan:
        fixed = tuple(_at_most(constraints, MAX_SIZE))
        return self.inputs._replace(constraints=fixed).plan(quota)


def _at_most(constraints: tuple[Batch, ...], tokens: int) -> tuple[Batch, ...]:
    """The same requests, none longer than `tokens`, and none that the planner would shrink by itself."""
    return tuple(
        Batch(
            [
                Request(min(each.capacity, tokens), min(each.history_length, tokens), count=each.count)
                for each in batch.requests
            ],
            batch.system_prompt_length,
        )
        for batch in constraints
    )
