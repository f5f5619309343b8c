"""Sizes of a cache whose groups are unlike: states of most of a MiB beside blocks of 8 KiB. On both paths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.cache.managed import live_to_the_last
from tests.fine_host import FINE, FineHostDriver
from vmmcache import KVCacheManager, MemoryBudget, PlanError, QuotaError
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, ConstraintPolicy, PlanWarning, Request, Ssm, plan
from vmmcache.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib")

STATE, BLOCK = 1000 * KIB, 8 * KIB
LAYOUT = CacheLayout(16, [Ssm([Buffer("state", STATE)]), Attention([Buffer("key", BLOCK)])])
STATES, BLOCKS = 0, 1
USUAL = Batch([Request(2000, 1999, count=2)])

Make = Callable[..., KVCacheManager]


def measured(**arguments: Any) -> KVCacheManager:
    return KVCacheManager(LAYOUT, FineHostDriver(), typical_step=USUAL, **arguments)


def estimated(**arguments: Any) -> KVCacheManager:
    return KVCacheManager(LAYOUT, "host", typical_step=USUAL, vmm=False, **arguments)


on_both_paths = pytest.mark.parametrize(("make", "granule"), [(measured, FINE), (estimated, 1)], ids=["vmm", "torch"])


def blocks_fall(granule: int) -> tuple[int, int]:
    """Two quotas, of which the larger is split into a state more, and many blocks fewer."""
    quotas = range(6 * MIB, 12 * MIB, FINE)
    slots = [[group.slots for group in plan(LAYOUT, quota, granule, typical_step=USUAL).groups] for quota in quotas]
    for index, (less, more) in enumerate(pairwise(slots)):
        if more[BLOCKS] < less[BLOCKS] - 20:
            return quotas[index], quotas[index + 1]
    raise AssertionError("the split is smooth, and this test of another one tests nothing")


@on_both_paths
def test_a_cache_that_grows_takes_no_slot_from_anybody(make: Make, granule: int) -> None:
    """S15: a few bytes more must not be refused because requests use what there was."""
    less, more = blocks_fall(granule)
    with make(budget=MemoryBudget(nbytes=12 * MIB)) as manager:
        manager.finalize()
        manager.resize(less)
        before = manager.committed
        request = manager.slots.allocate(before[BLOCKS] * 16)
        for quota in (more, more + MIB, 12 * MIB):
            manager.resize(quota)
            assert all(now >= then for now, then in zip(manager.committed, before, strict=True))
            assert manager.plan.nbytes <= quota
            before = manager.committed
        manager.slots.free(request)
        manager.resize(less)
        assert manager.plan.nbytes <= less, "what was not taken is not kept beyond a smaller quota"


def test_a_smaller_quota_may_give_a_group_more() -> None:
    """S15: there are addresses for what a group gets where the other one just misses a slot."""
    less, more = blocks_fall(FINE)
    with measured(budget=MemoryBudget(nbytes=more)) as manager:
        manager.finalize()
        blocks = manager.committed[BLOCKS]
        manager.resize(less)
        assert manager.committed[BLOCKS] > blocks + 20
        assert manager.committed == tuple(each.slots for each in plan(LAYOUT, less, FINE, typical_step=USUAL).groups)


@on_both_paths
@pytest.mark.parametrize("blocks", [100, 33])
def test_requests_are_fitted_to_the_slots_that_were_stated(make: Make, granule: int, blocks: int) -> None:
    """S12, P4: neither to the granules that these round up to, nor to the bytes of the other group."""
    long = Request(1 << 20, (1 << 20) - 1, ConstraintPolicy.FIT_TO_QUOTA)
    with make(budget=MemoryBudget(slots=[5, blocks]), constraints=[Batch([Request(16), long])]) as manager:
        with pytest.warns(PlanWarning, match=rf"constraints\[0\].requests\[1\] reduced to fit \[5, {blocks}\] slots"):
            report = manager.finalize()
        assert manager.committed == (5, blocks)
        # By the gate of 0.97: 97 blocks of 100, 32 of 33; one of them is the other request's.
        held = {100: 97, 33: 32}[blocks] - 1
        assert [cut.capacity for cut in report.reductions] == [(1 << 20, held * 16)]
        assert [cut.history_length for cut in report.reductions] == [((1 << 20) - 1, held * 16 - 1)]
        assert manager.plan.resolved_constraints[0].requests[1].policy is ConstraintPolicy.FIT_TO_QUOTA
        assert manager.plan.binding is not None
        assert manager.plan.binding.group == BLOCKS
        requests = [manager.slots.allocate(16), manager.slots.allocate(held * 16, held * 16 - 1)]
        live_to_the_last(manager, requests)


@on_both_paths
def test_stated_slots_in_which_nothing_fits_are_refused_in_slots(make: Make, granule: int) -> None:
    """S3, S12: whoever said slots is told slots."""
    fixed = Batch([Request(1000)])
    with (
        pytest.raises(
            PlanError, match=r"pool group 1 has 60 slots and constraints\[0\].*1000 tokens.* needs 65.*slots"
        ),
        make(budget=MemoryBudget(slots=[9, 60]), constraints=[fixed]) as manager,
    ):
        manager.finalize()
    wide = CacheLayout(16, [Attention([Buffer("key", BLOCK)], window=200)])
    vmm, device = (False, "host") if make is estimated else (None, FineHostDriver())
    with pytest.raises(PlanError, match=r"pool group 0 has 2 slots and the layout itself needs 14.*budget\.slots"):
        KVCacheManager(wide, device, MemoryBudget(slots=2), vmm=vmm)


@on_both_paths
def test_stated_bytes_in_which_nothing_runs_are_refused_in_those_words(make: Make, granule: int) -> None:
    """S3, S12: no word of a quota or of growth, which a manager does not have."""
    with pytest.raises(QuotaError, match=r"the cache was given 65536 bytes .* Give it more bytes or slots") as refusal:
        make(budget=MemoryBudget(nbytes=FINE))
    assert refusal.value.configured == FINE


def test_a_workload_beyond_the_device_names_utilization_only_below_one() -> None:
    """S3: before anything is measured, too."""
    long = [Batch([Request(1 << 20)])]
    for utilization, named in ((0.5, True), (None, False)):
        with pytest.raises(QuotaError, match=r"constraints\[0\]\.requests\[0\], 1048576 tokens") as refusal:
            measured(budget=MemoryBudget(utilization=utilization), constraints=long)
        assert ("raise utilization above 0.5" in str(refusal.value)) == named
        assert "margin_floor" not in str(refusal.value)
