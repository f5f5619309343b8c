"""S13: slots that no request gets. S3, I10: counts at which every segment ends on a granule. Through all of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import count
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.planning.model import Allocator, Model
from tests.planning.support import FIT, REWINDS, SHARES, batches, layouts, one_buffer
from tests.planning.test_allocator import apart
from vmmcache.errors import ConfigError, PlanError, QuotaError
from vmmcache.planning import (
    Attention,
    Batch,
    Buffer,
    CacheLayout,
    ConstraintPolicy,
    Plan,
    Request,
    Ssm,
    longest_in,
    longest_request,
    plan,
)
from vmmcache.planning.capacity import capacity_of
from vmmcache.planning.footprint import AlignedFootprint, Footprint
from vmmcache.planning.layout import Arrangement

pytestmark = pytest.mark.filterwarnings("ignore::vmmcache.planning.PlanWarning")

RESERVED = st.sampled_from([0, 1, 1, 5])
GRANULES = st.sampled_from([1, 12, 64])


class Wider(Model):
    """The model with slots set aside, and with counts only at which every pool ends on a granule, found by counting."""

    def __init__(self, layout: CacheLayout, rewind: int | None, reserved: int, aligned: bool) -> None:
        super().__init__(layout, rewind)
        self.reserved = reserved
        self.aligned = aligned

    def floors(self, batches: Iterable[Batch], share: Fraction) -> list[int]:
        return [floor + self.reserved for floor in super().floors(batches, share)]

    def nbytes(self, slots: Sequence[int], granule: int) -> int:
        return super().nbytes(self.rounded(slots, granule), granule)

    def rounded(self, slots: Sequence[int], granule: int) -> list[int]:
        if not self.aligned:
            return list(slots)
        rounded = []
        for group, number in zip(self.groups, slots, strict=True):
            sizes = self.sizes[group[0]]
            rounded.append(next(n for n in count(number) if all(n * size % granule == 0 for size in sizes)))
        return rounded


@given(layouts(), st.lists(batches(), max_size=2), SHARES, REWINDS, RESERVED)
def test_reserved_slots_come_on_top_of_every_floor(
    layout: CacheLayout, constraints: list[Batch], share: float, rewind: int | None, reserved: int
) -> None:
    options: dict[str, Any] = {
        "constraints": constraints,
        "max_util_for_resume": share,
        "scratch_rewind": rewind,
    }
    plain, wider = plan(layout, **options), plan(layout, reserved_slots=reserved, **options)
    assert [group.min_slots for group in wider.groups] == [group.min_slots + reserved for group in plain.groups]
    assert wider.demand == plain.demand
    model = Wider(layout, rewind, reserved, aligned=False)
    assert [group.min_slots for group in wider.groups] == model.floors(constraints, Fraction(str(share)))


@given(
    layouts(),
    st.lists(batches(), min_size=1, max_size=2),
    SHARES,
    REWINDS,
    RESERVED,
    st.booleans(),
    GRANULES,
    st.integers(1, 40_000),
)
def test_the_fit_is_the_largest_with_slots_set_aside_and_segments_on_granules(
    layout: CacheLayout,
    constraints: list[Batch],
    share: float,
    rewind: int | None,
    reserved: int,
    aligned: bool,
    granule: int,
    quota: int,
) -> None:
    assume(any(request.policy is FIT for batch in constraints for request in batch.requests))
    model = Wider(layout, rewind, reserved, aligned)
    best = model.best_fit(constraints, Fraction(str(share)), granule, quota)
    arguments: dict[str, Any] = {
        "constraints": constraints,
        "max_util_for_resume": share,
        "scratch_rewind": rewind,
        "reserved_slots": reserved,
        "aligned": aligned,
    }
    if best is None:
        with pytest.raises(QuotaError) as refusal:
            plan(layout, quota, granule, **arguments)
        enough = plan(layout, refusal.value.needed, granule, **arguments)
        assert enough.nbytes <= refusal.value.needed
        return
    planned = plan(layout, quota, granule, **arguments)
    assert list(planned.resolved_constraints) == best
    slots = [group.slots for group in planned.groups]
    assert slots == model.rounded(slots, granule)
    assert planned.nbytes == model.nbytes(slots, granule) <= quota


@given(
    layouts(),
    batches(policies=[ConstraintPolicy.FIXED]),
    st.sampled_from(["block-major", "layer-major"]),
    st.booleans(),
    GRANULES,
    st.integers(0, 20_000),
)
def test_no_room_is_left_in_which_a_group_could_have_a_slot_more(
    layout: CacheLayout, batch: Batch, arrangement: Arrangement, aligned: bool, granule: int, more: int
) -> None:
    """S3: wherever the published split does not bind us."""
    options: dict[str, Any] = {"constraints": [batch], "arrangement": arrangement, "aligned": aligned}
    try:
        least = plan(layout, granule=granule, **options).min_nbytes
    except ConfigError:
        assert arrangement == "layer-major"
        return
    assume(aligned or arrangement == "layer-major")
    planned = plan(layout, least + more, granule, **options)
    assert planned.usable is not None
    assert planned.nbytes <= planned.usable
    for group in planned.groups:
        sizes = [nbytes for pool in group.segments for nbytes, number in pool for _ in range(number)]
        one_more = next(
            n for n in count(group.slots + 1) if not aligned or all(n * size % granule == 0 for size in sizes)
        )
        nbytes = sum(len(range(0, one_more * size, granule)) * granule for size in sizes)
        assert nbytes - group.nbytes > planned.usable - planned.nbytes


def test_what_a_group_of_long_steps_cannot_use_is_for_the_others() -> None:
    """A hybrid of Qwen3-Next's kind: 36 states of 1.05 MiB, which end on granules every 32; blocks do every 16."""
    state, block = Ssm([Buffer("state", 1 << 20), Buffer("conv", 49152)], count=36), 16 * 1024
    layout = CacheLayout(16, [state, Attention([Buffer("key", block), Buffer("value", block)], count=12)])
    options: dict[str, Any] = {"constraints": [Batch([Request(8192)])], "aligned": True}
    asked = plan(layout, **options)
    assert [asked.alignment(group) for group in range(2)] == [32, 16]
    assert asked.groups[0].nbytes == 32 * 36 * ((1 << 20) + 49152), "all states of a step, of which one is needed"
    for quota in range(3 << 30, 5 << 30, 100 << 20):
        planned = plan(layout, quota, **options)
        assert planned.usable is not None
        assert planned.usable - planned.nbytes < 6 << 20, "a step of blocks"


@given(layouts(), batches(), SHARES, REWINDS, st.randoms(use_true_random=False))
def test_a_declared_batch_is_admitted_on_what_is_not_reserved(
    layout: CacheLayout, batch: Batch, share: float, rewind: int | None, random: Any
) -> None:
    """I13: the gate's total is without the null block, and so is the floor that it was scaled for."""
    batch = apart(batch)
    options: dict[str, Any] = {"max_util_for_resume": share, "scratch_rewind": rewind, "reserved_slots": 1}
    planned = plan(layout, constraints=[batch], **options)
    order = list(range(len(batch.requests)))
    random.shuffle(order)
    usable = [group.min_slots - 1 for group in planned.groups]
    assert Allocator(Model(layout, rewind), usable, Fraction(str(share))).admit(batch, order) == len(order)


@given(layouts(), st.sampled_from(["block-major", "layer-major"]), GRANULES, st.integers(0, 3000), st.integers(0, 500))
def test_aligned_counts_against_counting(
    layout: CacheLayout, arrangement: Arrangement, granule: int, slots: int, granules: int
) -> None:
    try:
        footprint, free = (kind(layout, granule, arrangement) for kind in (AlignedFootprint, Footprint))
    except ConfigError:
        assert arrangement == "layer-major"
        return
    for group, pools in enumerate(footprint.segments):
        strides = [nbytes for pool in pools for nbytes, _ in pool]
        step = next(n for n in count(1) if all(n * stride % granule == 0 for stride in strides))
        assert footprint.alignment(group) == free.alignment(group) == step
        counted = footprint.counted([slots] * len(footprint.segments))[group]
        assert (counted % step, counted - slots in range(step)) == (0, True)
        assert footprint.granules(group, slots) == free.granules(group, counted)
        # What an aligned count takes has no rounding in it at all.
        parts = [(nbytes, times) for pool in pools for nbytes, times in pool]
        assert free.granules(group, counted) * granule == sum(counted * nbytes * times for nbytes, times in parts)
        most = footprint.most_slots(group, granules)
        assert most % step == 0
        assert footprint.granules(group, most) <= granules < footprint.granules(group, most + 1)
    everywhere = [slots] * len(footprint.segments)
    assert footprint.total(everywhere) == sum(footprint.granules(group, slots) for group in range(len(everywhere)))


@given(layouts(), batches(policies=(ConstraintPolicy.FIXED,)), RESERVED, GRANULES, st.integers(0, 200))
def test_an_aligned_plan_stays_within_its_quota_and_above_its_floors(
    layout: CacheLayout, batch: Batch, reserved: int, granule: int, more: int
) -> None:
    options: dict[str, Any] = {"constraints": [batch], "reserved_slots": reserved, "aligned": True}
    least = plan(layout, granule=granule, **options)
    assert least.nbytes == least.min_nbytes == sum(group.nbytes for group in least.groups)
    assert all(group.slots % least.alignment(index) == 0 for index, group in enumerate(least.groups))
    planned = plan(layout, least.min_nbytes + more * granule, granule, **options)
    check_aligned(planned)
    again = planned.adjusted(least.min_nbytes + 3 * more * granule)
    check_aligned(again)
    assert again.nbytes >= least.min_nbytes
    if granule > 1:
        with pytest.raises(QuotaError):
            plan(layout, least.min_nbytes - 1, granule, **options)


def check_aligned(planned: Plan) -> None:
    assert planned.usable is not None
    assert planned.aligned
    assert planned.nbytes == sum(group.nbytes for group in planned.groups) <= planned.usable
    for index, group in enumerate(planned.groups):
        assert group.slots % planned.alignment(index) == 0
        assert group.slots >= group.min_slots


@given(layouts(), RESERVED, st.integers(1, 20_000))
def test_the_longest_request_and_the_capacity_leave_reserved_slots_alone(
    layout: CacheLayout, reserved: int, quota: int
) -> None:
    longest = longest_request(layout, quota, 16, upper=1000, reserved_slots=reserved)
    pools = plan(layout, quota, 16, reserved_slots=reserved, allow_growth=True)
    assert longest == longest_in(pools, upper=1000)
    fits = Allocator(Model(layout), [group.slots - reserved for group in pools.groups], Fraction(1))
    assert fits.admit(Batch([Request(longest, longest)]), [0]) == 1
    if longest < 1000:
        beyond = longest + layout.tokens_per_block
        fresh = Allocator(Model(layout), [group.slots - reserved for group in pools.groups], Fraction(1))
        assert fresh.admit(Batch([Request(beyond, beyond)]), [0]) == 0
    told = capacity_of(pools, max(1, longest))
    assert told.longest == longest_in(pools)


def test_a_null_block_costs_one_slot_of_each_group_and_no_more() -> None:
    layout = CacheLayout(16, [one_buffer(None, 64), one_buffer(64, 96), Ssm([Buffer("state", 7)])])
    batch = Batch([Request(1600, 1599, count=10)])
    plain, wider = (plan(layout, constraints=[batch], reserved_slots=reserved) for reserved in (0, 1))
    assert [group.min_slots for group in plain.groups] == [1031, 42, 10]
    assert [group.min_slots for group in wider.groups] == [1032, 43, 11]
    assert capacity_of(wider, 1600).requests == capacity_of(plain, 1600).requests == 10


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1", 2**31])
def test_reserved_slots_are_a_number_of_slots(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^reserved_slots="):
        plan(CacheLayout(16, [one_buffer(None, 64)]), reserved_slots=wrong)


@pytest.mark.parametrize("aligned", [False, True])
def test_floors_beyond_31_bits_are_refused_whoever_asks_for_them(aligned: bool) -> None:
    layout = CacheLayout(16, [Attention([Buffer("key", 3)])])
    with pytest.raises(PlanError, match="the layout itself needs"):
        plan(layout, reserved_slots=2**31 - 1, aligned=aligned)
    if aligned:
        assert plan(layout, reserved_slots=2**31 - 5).groups[0].slots == 2**31 - 4
        with pytest.raises(PlanError, match="the layout itself needs 2147483648 slots"):
            plan(layout, reserved_slots=2**31 - 5, aligned=True)


def test_states_that_keep_their_floor_beside_a_ratio_are_rounded_up_too() -> None:
    """With an explicit ratio a group of states gets exactly its floor, and that need not end on a granule."""
    layout = CacheLayout(16, [one_buffer(None, 64), Ssm([Buffer("state", 96)])])
    batch = Batch([Request(16, 15, count=5)])
    for aligned, states in ((False, 5), (True, 32)):
        planned = plan(layout, 1 << 20, 1024, constraints=[batch], pool_ratio=[0.9999, 0.0001], aligned=aligned)
        assert planned.groups[1].slots == states
        assert planned.nbytes == 1 << 20


def test_without_either_a_plan_is_what_it_was() -> None:
    layout = CacheLayout(16, [one_buffer(None, 64), one_buffer(64, 96)])
    planned = plan(layout, 1 << 20, 4096)
    assert planned == plan(layout, 1 << 20, 4096, reserved_slots=0, aligned=False)
    assert (planned.reserved_slots, planned.aligned) == (0, False)
