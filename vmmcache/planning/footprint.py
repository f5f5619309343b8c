"""From slots to bytes and back, by the rounding of the memory that holds them.

Memory is mapped in granules. Each pool rounds up by itself, or, layer-major, each layer's part of it; a sum of slots
times slot bytes is a number that no device has ever allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm
from typing import Final

from vmmcache.planning.layout import Arrangement, CacheLayout, Part
from vmmcache.planning.limits import MAX_SLOTS
from vmmcache.units import GIB, MIB, align_down, align_up

__all__ = ["AlignedFootprint", "Footprint", "default_granule", "footprint_of"]

LARGEST_DOUBLING: Final = 4


def default_granule(quota: int) -> int:
    """Granule for a quota where nothing else decides: 2 MiB below 2 GiB, doubled with the quota, at most 32 MiB.

    Bounds the number of handles for large caches and the loss by rounding for small ones; the rule of TensorRT-LLM's KV
    cache manager V2.

    >>> [default_granule(n * GIB) // MIB for n in (1, 2, 7, 16, 1000)]
    [2, 4, 8, 32, 32]
    """
    doublings = max(quota // GIB, 1).bit_length() - 1
    return 2 * MIB << min(doublings, LARGEST_DOUBLING)


class Footprint:
    """What slots take of memory that is mapped in granules.

    Parameters
    ----------
    layout : CacheLayout
        Whose slots.
    granule : int
        Bytes.
    arrangement : "block-major" or "layer-major"
        What rounds by itself.
    """

    __slots__ = ("_parts", "_totals", "granule", "segments")

    def __init__(self, layout: CacheLayout, granule: int, arrangement: Arrangement) -> None:
        self.granule = granule
        self.segments = layout.segments(arrangement)
        self._parts: list[list[Part]] = [[part for pool in group for part in pool] for group in self.segments]
        self._totals = [
            (sum(nbytes * count for nbytes, count in parts), sum(count for _, count in parts)) for parts in self._parts
        ]

    def alignment(self, group: int) -> int:
        """Smallest step of slots at which every segment of `group` ends on a granule.

        That is ``granule / gcd(slot bytes, granule)`` of each segment, and the least common multiple of those.
        """
        return lcm(*(self.granule // gcd(nbytes, self.granule) for nbytes, _ in self._parts[group]))

    def counted(self, slots: list[int]) -> list[int]:
        """The numbers of slots that the groups really have where `slots` were asked for."""
        return slots

    def granules(self, group: int, slots: int) -> int:
        """Granules that `slots` slots of `group` take."""
        granule = self.granule
        total = 0
        for nbytes, count in self._parts[group]:
            total += -(-slots * nbytes // granule) * count
        return total

    def total(self, slots: Sequence[int]) -> int:
        """Granules that the slots of all groups take."""
        granule = self.granule
        total = 0
        for parts, number in zip(self._parts, slots, strict=True):
            for nbytes, count in parts:
                total += -(-number * nbytes // granule) * count
        return total

    def most_slots(self, group: int, granules: int) -> int:
        """Largest number of slots of `group` that takes no more than `granules`; at most 2^31 - 1."""
        nbytes, segments = self._totals[group]
        budget = granules * self.granule
        high = budget // nbytes
        if segments > 1:
            # Rounding costs each segment less than a granule, so these many fit for certain.
            low = max(0, (budget - segments * (self.granule - 1)) // nbytes)
            while low < high:
                middle = (low + high + 1) // 2
                if self.granules(group, middle) <= granules:
                    low = middle
                else:
                    high = middle - 1
        return min(high, MAX_SLOTS)


class AlignedFootprint(Footprint):
    """The same where only counts are had at which every segment ends on a granule: asking for one slot takes a step.

    What is registered with a NIC begins and ends on a granule (I10). A group's step may be long: 1024 slots where they
    have 18,432 bytes and granules 2 MiB.
    """

    __slots__ = ("_steps",)

    def __init__(self, layout: CacheLayout, granule: int, arrangement: Arrangement) -> None:
        super().__init__(layout, granule, arrangement)
        self._steps = [self.alignment(group) for group in range(len(self.segments))]

    def counted(self, slots: list[int]) -> list[int]:
        return list(map(align_up, slots, self._steps))

    def granules(self, group: int, slots: int) -> int:
        return super().granules(group, align_up(slots, self._steps[group]))

    def total(self, slots: Sequence[int]) -> int:
        return super().total(list(map(align_up, slots, self._steps)))

    def most_slots(self, group: int, granules: int) -> int:
        # The search counts granules by the method above, and what it finds may lie within a step that is paid for.
        return align_down(super().most_slots(group, granules), self._steps[group])


def footprint_of(layout: CacheLayout, granule: int, arrangement: Arrangement, aligned: bool) -> Footprint:
    """The footprint for any count of slots, or for aligned ones."""
    return (AlignedFootprint if aligned else Footprint)(layout, granule, arrangement)
