"""What slots hold: moved, copied to the host, and written back, in all pools of a group at once.

Everything goes through the memory's own reading and writing, and so works where torch cannot open the device, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vmmcache.cache.moves import in_order, runs
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.slot_memory import SlotMemory
from vmmcache.errors import ConfigError
from vmmcache.units import as_count

__all__ = ["SlotContents", "SlotCopy"]


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """What was in some slots of one group, in host memory."""

    group: int
    count: int
    """How many slots."""
    parts: tuple[bytearray, ...]
    """For each segment of the group, its bytes, slot after slot."""

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))


class SlotContents:
    """Slots of every pool group in some memory, as far as their contents go.

    Parameters
    ----------
    pools : PoolMap
    memory : SlotMemory
    """

    def __init__(self, pools: PoolMap, memory: SlotMemory) -> None:
        self.pools: Final = pools
        self._memory: Final = memory

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of each group that are backed by memory now; none while asleep."""
        committed = self._memory.committed
        return tuple(
            min(committed[index] // self.pools.segments[index].stride for index in indices)
            for indices in self.pools.groups
        )

    def move_slots(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy slots of a group in all its pools: for each pair, the source to the target.

        All at once in meaning: a slot that is the target of one pair and the source of another is read before it is
        overwritten. Waits for the device before and after.

        Raises
        ------
        ConfigError
            There is no such group or slot, a slot is the target of two pairs, or pairs go round in a circle.
        StateError
            The backing is asleep or closed.
        DriverError
            A copy failed. Some targets may hold copies; what was in other slots is as it was. Where a target is the
            source of another pair, the call must not simply be repeated.
        """
        moves = in_order(pairs, self.slots[self._group(group)])
        pieces = []
        for index in self.pools.groups[group]:
            stride = self.pools.segments[index].stride
            pieces += [(index, move.target * stride, move.source * stride, move.length * stride) for move in moves]
        self._memory.copy(pieces)

    def read_slots(self, group: int, slots: Sequence[int]) -> SlotCopy:
        """Copy slots of a group, in all its pools, to host memory; waits for the device.

        Raises
        ------
        ConfigError, StateError, DriverError
            As for `move_slots`.
        """
        numbers = self._numbers(group, slots)
        indices = self.pools.groups[group]
        spans = list(runs(numbers))
        strides = [self.pools.segments[index].stride for index in indices]
        pieces = [
            (index, first * stride, count * stride)
            for index, stride in zip(indices, strides, strict=True)
            for _, first, count in spans
        ]
        read = iter(self._memory.read(pieces))
        return SlotCopy(group, len(numbers), tuple(_joined([next(read) for _ in spans]) for _ in indices))

    def write_slots(self, group: int, slots: Sequence[int], copy: SlotCopy) -> None:
        """Put what `read_slots` read into as many slots of the same group, in the order given.

        Raises
        ------
        ConfigError
            As for `move_slots`; or the copy is of another group or number of slots, or a slot comes twice.
        StateError, DriverError
            As for `move_slots`.
        """
        numbers = self._numbers(group, slots)
        if len(set(numbers)) != len(numbers):
            raise ConfigError("slots", slots, "a slot that comes twice would get the contents of two")
        indices = self.pools.groups[group]
        strides = [self.pools.segments[index].stride for index in indices]
        fits = [len(numbers) * stride for stride in strides] == [len(part) for part in copy.parts]
        if copy.group != group or copy.count != len(numbers) or not fits:
            raise ConfigError("copy", copy.nbytes, f"is of {copy.count} slots of group {copy.group}, not of these")
        self._memory.write(
            [
                (index, first * stride, part[place * stride : (place + count) * stride])
                for index, stride, part in zip(indices, strides, copy.parts, strict=True)
                for place, first, count in runs(numbers)
            ]
        )

    def _group(self, group: object) -> int:
        return as_count("group", group, maximum=len(self.pools.groups) - 1, unit="(a pool group)")

    def _numbers(self, group: object, slots: Sequence[int]) -> list[int]:
        backed = self.slots[self._group(group)]
        return [
            as_count(f"slots[{place}]", slot, maximum=backed - 1, unit="(a slot)") for place, slot in enumerate(slots)
        ]


def _joined(parts: list[bytearray]) -> bytearray:
    return parts[0] if len(parts) == 1 else bytearray().join(parts)
