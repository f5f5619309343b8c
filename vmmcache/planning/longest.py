"""The longest request that a given quota serves beside others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vmmcache.planning.demand import Demand
from vmmcache.planning.layout import Arrangement, CacheLayout
from vmmcache.planning.limits import MAX_SIZE, MAX_SLOTS, as_size
from vmmcache.planning.planner import plan
from vmmcache.planning.result import Plan
from vmmcache.planning.workload import Batch
from vmmcache.units import MIB

__all__ = ["longest_in", "longest_request"]


def longest_request(
    layout: CacheLayout,
    quota: int,
    granule: int = 2 * MIB,
    batch: int = 1,
    upper: int = MAX_SIZE,
    *,
    constraints: Iterable[Batch] = (),
    typical_step: Batch | None = None,
    pool_ratio: Sequence[float] | None = None,
    max_util_for_resume: float = 0.97,
    scratch_rewind: int | None = None,
    arrangement: Arrangement = "block-major",
    reserved_slots: int = 0,
) -> int:
    """Tokens of the longest request that runs while `batch` - 1 others have just begun.

    The pools are those of a plan with the same arguments, so the split between pool groups counts, and where the quota
    is below the layout's own floors, so do these: a cache never has less.

    Parameters
    ----------
    layout, quota, granule
        As for `plan`.
    batch : int, default 1
        Requests that run together.
    upper : int, optional
        Tokens beyond which the answer does not matter.
    constraints, typical_step, pool_ratio, max_util_for_resume, scratch_rewind, arrangement, reserved_slots
        As for `plan`.

    Returns
    -------
    int
        A multiple of tokens_per_block, or `upper`; 0 where not even the others fit.

    Raises
    ------
    ConfigError
        An argument is wrong.
    """
    batch = as_size("batch", batch, minimum=1, maximum=MAX_SLOTS, unit="requests")
    upper = as_size("upper", upper, unit="tokens")
    pools = plan(
        layout,
        quota,
        granule,
        constraints=constraints,
        typical_step=typical_step,
        pool_ratio=pool_ratio,
        max_util_for_resume=max_util_for_resume,
        scratch_rewind=scratch_rewind,
        arrangement=arrangement,
        reserved_slots=reserved_slots,
        allow_growth=True,
    )
    return longest_in(pools, batch, upper)


def longest_in(pools: Plan, batch: int = 1, upper: int = MAX_SIZE) -> int:
    """`longest_request` for pools that are planned already."""
    demand = Demand(pools.layout, pools.scratch_rewind)
    others = demand.by_group(demand.private([(1, 1, batch - 1)], 0))
    free = [group.slots - pools.reserved_slots - taken for group, taken in zip(pools.groups, others, strict=True)]
    if min(free) < 0:
        return 0
    t = pools.layout.tokens_per_block

    def fits(length: int) -> bool:
        needs = demand.by_group(demand.private([(length, length, 1)], 0))
        return all(need <= left for need, left in zip(needs, free, strict=True))

    if fits(upper):
        return upper
    # Whole blocks: there, and not from token to token, need grows with length.
    low, high = 0, upper // t + 1
    while low < high - 1:
        middle = (low + high) // 2
        if fits(middle * t):
            low = middle
        else:
            high = middle
    return min(low * t, upper)
