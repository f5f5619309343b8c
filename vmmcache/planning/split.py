"""Who gets what is left of a quota beyond the floors.

Each group has a weight: what it would take of memory under a typical load. It gets that share of the granules, turned
into slots; a group whose share is no more than its floor keeps the floor, and the others share what that leaves. All
arithmetic is on integers: weights are granules, or the numerators of the caller's ratios over one denominator.

That is the split of TensorRT-LLM's KV cache manager V2, whose figures tests hold it to. Where a group grows by long
steps it leaves up to one of them to nobody: a state of 38 MiB in steps of 32 that end on granules is 1.2 GiB. So where
counts are aligned, or layers are rounded one by one, which that planner has not, what is left goes to the groups that
can take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from vmmcache.errors import ConfigError
from vmmcache.planning.exact import as_exact
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.layout import CacheLayout

__all__ = ["ratio_weights", "round_half_even", "slot_weights", "split"]

SUM_TOLERANCE = Fraction(1, 1_000_000)


def ratio_weights(layout: CacheLayout, pool_ratio: Sequence[object]) -> list[int]:
    """Weights per pool group from a ratio with one positive entry per life cycle.

    Raises
    ------
    ConfigError
        Wrong length, an entry that is not positive and finite, or a sum that is not 1 (within 10^-6).
    """
    if isinstance(pool_ratio, str) or not isinstance(pool_ratio, Sequence):
        raise ConfigError("pool_ratio", pool_ratio, "must be a list with one number per life cycle")
    expected = len(layout.life_cycles)
    if len(pool_ratio) != expected:
        raise ConfigError(
            "pool_ratio", pool_ratio, f"length is {len(pool_ratio)}, the layout has {expected} life cycles"
        )
    shares = [as_exact(f"pool_ratio[{index}]", share) for index, share in enumerate(pool_ratio)]
    for index, share in enumerate(shares):
        if share.numerator <= 0:
            raise ConfigError(f"pool_ratio[{index}]", pool_ratio[index], "must be positive")
    total = sum(shares, Fraction(0))
    if abs(total - 1) > SUM_TOLERANCE:
        raise ConfigError("pool_ratio", pool_ratio, f"must sum to 1.0, not {float(total):g}")
    common = lcm(*(share.denominator for share in shares))
    weights = [0] * len(layout.groups)
    for cycle, share in zip(layout.life_cycles, shares, strict=True):
        weights[cycle.group] += int(share * common)
    return weights


def slot_weights(footprint: Footprint, slots: Sequence[int], reserved: int = 0) -> list[int]:
    """Weights per pool group from a load that takes `slots` beside reserved ones: granules, at least of one slot."""
    return [footprint.granules(group, max(1, need + reserved)) for group, need in enumerate(slots)]


def split(
    layout: CacheLayout,
    footprint: Footprint,
    budget: int,
    floors: Sequence[int],
    weights: Sequence[int],
    explicit: bool,
    *,
    fill: bool = False,
) -> list[int]:
    """Slots per pool group for a budget that covers the floors.

    Parameters
    ----------
    layout, footprint
        The groups and their rounding.
    budget : int
        Granules; at least those of the floors.
    floors, weights : sequences of int
        One entry per group.
    explicit : bool
        The weights are the caller's own ratio: a group of SSM states whose share does not exceed its floor then keeps
        exactly the floor, because its size is known and not a matter of load.
    fill : bool, default False
        Leave no room in which any of the others could have a slot more.
    """
    left, takers = budget, list(range(len(floors)))
    slots = list(floors)
    least = [footprint.granules(group, floor) for group, floor in enumerate(floors)]
    active = sorted(range(len(slots)), key=lambda group: (weights[group], group))
    if explicit:
        whole, total = sum(weights), budget
        for group in range(len(slots)):
            share = round_half_even(total * weights[group], whole)
            if layout.groups[group].constant and share <= least[group]:
                active.remove(group)
                takers.remove(group)
                budget -= least[group]
    while active:
        shares = _shares(footprint, budget, active, weights)
        pinned = [group for group in active if shares[group] <= floors[group]]
        if not pinned:
            for group in active:
                # And the slots that fit into the granules that these take anyway.
                slots[group] = footprint.most_slots(group, footprint.granules(group, shares[group]))
            break
        for group in pinned:
            budget -= least[group]
            slots[group] = footprint.most_slots(group, least[group])
            active.remove(group)
    return _filled(footprint, slots, left, takers, weights) if fill else slots


def round_half_even(numerator: int, denominator: int) -> int:
    """Nearest integer to a fraction, halves to the even one, as IEEE arithmetic rounds.

    >>> [round_half_even(n, 2) for n in (1, 2, 3, 5)]
    [0, 1, 2, 2]
    """
    quotient, remainder = divmod(numerator, denominator)
    return quotient + (2 * remainder + (quotient & 1) > denominator)


def _filled(
    footprint: Footprint, slots: list[int], budget: int, takers: Sequence[int], weights: Sequence[int]
) -> list[int]:
    """`slots`, and those that still fit the budget, for `takers`: first the one that is furthest below its weight."""
    taken = [footprint.granules(group, number) for group, number in enumerate(slots)]
    left = budget - sum(taken)
    for group in sorted(takers, key=lambda group: (Fraction(taken[group], weights[group]), group)):
        # What one could not take, it cannot take of less either: once through is enough.
        slots[group] = footprint.most_slots(group, taken[group] + left)
        left -= footprint.granules(group, slots[group]) - taken[group]
    return slots


def _shares(footprint: Footprint, budget: int, active: Sequence[int], weights: Sequence[int]) -> dict[int, int]:
    """Slots that each active group gets of the budget, the lightest first, so that rounding falls on the heavy ones."""
    remaining = sum(weights[group] for group in active)
    shares = {}
    for group in active:
        share = round_half_even(budget * weights[group], remaining)
        shares[group] = footprint.most_slots(group, share)
        budget -= footprint.granules(group, shares[group])
        remaining -= weights[group]
    return shares
