"""One measurement out of those of all ranks.

Groups of two ranks that have a life cycle in common are one group of the whole model. A pipeline stage that has none of
its life cycles has no say in its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm

from vmmcache.cache.ranks.numbers import MODES, NO_COUNT, GroupNumbers, LifeCycleKey, Measurement, named
from vmmcache.errors import ConfigError
from vmmcache.units import align_down

__all__ = ["merge_measurements"]


def merge_measurements(measurements: Sequence[Sequence[int]]) -> list[int]:
    """What all ranks go by, from what each has measured (S10, I14).

    Slots by minimum, then rounded down to the least common multiple of all alignments, so that every rank can back
    exactly that; capacities by minimum. The order of ranks does not matter. Merging what was merged before, node by
    node, gives the same numbers, or is refused where the node's ranks have groups that only another node's ranks join:
    better to hand in all lists at once.

    Parameters
    ----------
    measurements : sequence of sequences of int
        One of `Measurement.to_ints` (``KVCacheManager.measure()`` or ``committable()``) for each rank.

    Returns
    -------
    list of int
        A measurement again, with the groups of all ranks; for ``KVCacheManager.apply`` of every rank.

    Raises
    ------
    ConfigError
        A list is no measurement, ranks have different numbers of FIT_TO_QUOTA requests, or pipeline stages group the
        same life cycles differently. Every rank that merges the same lists gets the same error.
    """
    if not measurements:
        raise ConfigError("measurements", measurements, "must have one list for each rank")
    found = [Measurement.from_ints(values, f"measurements[{rank}]") for rank, values in enumerate(measurements)]
    lengths = [len(measurement.capacities) for measurement in found]
    if len(set(lengths)) > 1:
        raise ConfigError(
            "measurements", lengths, "numbers of FIT_TO_QUOTA requests: give every rank the same constraints"
        )
    merged = []
    for together in _joined(found):
        alignment = 1
        for group in together:
            alignment = min(lcm(alignment, group.alignment), NO_COUNT)
        merged.append(
            GroupNumbers(
                tuple({cycle: None for group in together for cycle in group.life_cycles}),
                align_down(min(group.slots for group in together), alignment),
                min(group.capacity for group in together),
                alignment,
            )
        )
    mode = MODES[min(MODES.index(measurement.mode) for measurement in found)]
    capacities = tuple(map(min, zip(*(measurement.capacities for measurement in found), strict=True)))
    return Measurement(mode, tuple(merged), capacities).to_ints()


def _joined(found: Sequence[Measurement]) -> Iterator[list[GroupNumbers]]:
    """Groups of all ranks, those with a life cycle in common together."""
    joint: dict[LifeCycleKey, set[LifeCycleKey]] = {}
    for measurement in found:
        for group in measurement.groups:
            members = set(group.life_cycles).union(*(joint.get(cycle, ()) for cycle in group.life_cycles))
            joint |= dict.fromkeys(members, members)
    together: dict[int, list[GroupNumbers]] = {}
    for rank, measurement in enumerate(found):
        mine: dict[int, GroupNumbers] = {}
        for group in measurement.groups:
            key = id(joint[group.life_cycles[0]])
            if (other := mine.setdefault(key, group)) is not group:
                raise ConfigError(
                    f"measurements[{rank}]",
                    f"{named(other.life_cycles)} and {named(group.life_cycles)}",
                    "are two pool groups here and one on other ranks, so their slots cannot be numbered alike: split "
                    "the layers so that every pipeline stage has the same proportions of kinds of layers",
                )
            together.setdefault(key, []).append(group)
    yield from together.values()
