"""What lies beyond the floors, and who gets it (P3, P7)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.support import batch_of, batches, layouts, one_buffer
from vmmcache.errors import QuotaError
from vmmcache.planning import Batch, Buffer, CacheLayout, ConstraintPolicy, Plan, Request, Ssm, plan
from vmmcache.planning.split import round_half_even
from vmmcache.units import GIB, MIB

TWO = CacheLayout(32, [one_buffer(128, 786432, sinks=32), one_buffer(None, 1310720)])
FIXED = [ConstraintPolicy.FIXED]


def ratio(plan: Plan) -> Fraction:
    return Fraction(plan.groups[0].nbytes, plan.nbytes)


def slots(plan: Plan) -> list[int]:
    return [group.slots for group in plan.groups]


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_rounding_is_that_of_ieee_arithmetic(numerator: int, denominator: int) -> None:
    assert round_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


def test_without_a_workload_the_split_is_that_of_one_decoding_request() -> None:
    planned = plan(TWO, 128 * MIB)
    assert [group.min_slots for group in planned.groups] == [6, 6]
    assert slots(planned) == [10, 96]


def test_a_typical_step_decides_the_split_and_no_floor() -> None:
    short = plan(TWO, 128 * MIB, typical_step=batch_of([(64, 32)] * 64))
    long = plan(TWO, 128 * MIB, typical_step=batch_of([(4096, 4000)] * 32))
    assert slots(short) == [64, 64]
    assert slots(long) == [8, 97]
    assert [group.min_slots for group in short.groups] == [group.min_slots for group in long.groups] == [6, 6]


def test_typical_steps_that_cover_each_other_split_alike() -> None:
    one = plan(TWO, GIB, typical_step=batch_of([(1024, 1024)] * 4))
    other = plan(TWO, GIB, typical_step=batch_of([(1024, 1024)] * 4), constraints=[batch_of([(512, 512)] * 4)])
    assert slots(one) == slots(other)


def test_constraints_stay_floors_beside_an_explicit_ratio() -> None:
    """P3, and the floor of 2112 slots that the ratio alone would not give."""
    constraint = batch_of([(256, 128)] * 256)
    planned = plan(TWO, 5 * GIB, constraints=[constraint], pool_ratio=[0.8, 0.2])
    assert [group.min_slots for group in planned.groups] == [2112, 2112]
    assert all(group.slots >= 2112 for group in planned.groups)
    free = plan(TWO, 5 * GIB, pool_ratio=[0.8, 0.2])
    assert ratio(free) == Fraction(4, 5)
    assert ratio(planned) < ratio(free)


def test_growth_beyond_the_quota_is_asked_for_by_name() -> None:
    constraint = batch_of([(256, 128)] * 256)
    with pytest.raises(QuotaError) as refusal:
        plan(TWO, 128 * MIB, constraints=[constraint], pool_ratio=[0.8, 0.2])
    grown = plan(TWO, 128 * MIB, constraints=[constraint], pool_ratio=[0.8, 0.2], allow_growth=True)
    assert grown.nbytes == grown.min_nbytes == refusal.value.needed == 4_429_185_024
    assert (grown.usable, grown.quota) == (128 * MIB, 128 * MIB)
    assert slots(grown) == [2112, 2112]


def test_life_cycles_of_one_group_add_up_to_its_ratio() -> None:
    layout = CacheLayout(8, [one_buffer(8, 64), one_buffer(16, 64), one_buffer(None, 128)])
    together = plan(layout, GIB, pool_ratio=[0.25, 0.25, 0.5])
    assert ratio(together) == Fraction(1, 2)


def test_states_whose_ratio_is_below_their_floor_keep_exactly_the_floor() -> None:
    """F16: their number is known; only an explicit ratio says that no more of them are wanted."""
    layout = CacheLayout(8, [Ssm([Buffer("state", MIB)]), one_buffer(None, 1000)])
    constraints = [Batch([Request(8, 7, count=3)])]
    explicit = plan(layout, GIB, constraints=constraints, pool_ratio=[0.001, 0.999])
    assert explicit.groups[0].slots == explicit.groups[0].min_slots == 3
    derived = plan(layout, GIB, constraints=constraints, typical_step=Batch([Request(1 << 25)]))
    assert derived.groups[0].slots == 4  # the granule has room for one more


def test_a_typical_step_without_requests_still_gives_every_group_something() -> None:
    assert all(count > 0 for count in slots(plan(TWO, GIB, typical_step=Batch([]))))


@given(
    layouts(), st.lists(batches(policies=FIXED), max_size=2), st.integers(1, 60_000), st.sampled_from([1, 7, 64, 500])
)
def test_planned_bytes_stay_within_the_usable_quota_and_above_the_floors(
    layout: CacheLayout, constraints: list[Batch], quota: int, granule: int
) -> None:
    usable = quota // granule * granule
    needed = plan(layout, granule=granule, constraints=constraints).min_nbytes
    if needed > usable:
        with pytest.raises(QuotaError) as refusal:
            plan(layout, quota, granule, constraints=constraints)
        error = refusal.value
        assert (error.cause, error.needed, error.usable, error.configured) == ("fixed", needed, usable, quota)
        return
    planned = plan(layout, quota, granule, constraints=constraints)
    assert planned.usable == usable
    assert planned.min_nbytes <= planned.nbytes <= planned.usable
    assert all(group.slots >= group.min_slots > 0 for group in planned.groups)


@given(layouts(), batches(policies=FIXED), st.data())
def test_order_and_copies_of_requests_do_not_matter(layout: CacheLayout, batch: Batch, data: st.DataObject) -> None:
    entries = [request._replace(count=1) for request in batch.requests for _ in range(request.count)]
    shuffled = Batch(data.draw(st.permutations(entries)), batch.system_prompt_length)
    one, other = (plan(layout, 1 << 20, 64, constraints=[each], allow_growth=True) for each in (batch, shuffled))
    assert one.groups == other.groups
    assert one.demand == other.demand


@given(layouts(), batches(policies=FIXED), st.integers(0, 20_000), st.integers(0, 20_000))
def test_adjusting_there_and_back_is_the_same_plan(layout: CacheLayout, batch: Batch, more: int, other: int) -> None:
    least = plan(layout, constraints=[batch], granule=64).min_nbytes
    before = plan(layout, least + more, 64, constraints=[batch])
    there = before.adjusted(least + other)
    assert there == plan(layout, least + other, 64, constraints=[batch])
    assert there.adjusted(least + more) == before


def test_floors_survive_an_adjustment_and_a_quota_below_them_is_refused() -> None:
    """P7, I12."""
    planned = plan(TWO, 8 * GIB, constraints=[batch_of([(256, 128)] * 256)])
    moved = planned.adjusted(pool_ratio=[0.9, 0.1])
    assert [group.min_slots for group in moved.groups] == [2112, 2112]
    assert moved.groups[0].slots > planned.groups[0].slots
    with pytest.raises(QuotaError) as refusal:
        moved.adjusted(planned.min_nbytes - 1)
    assert (refusal.value.cause, refusal.value.needed) == ("fixed", planned.min_nbytes)
    assert moved.adjusted(planned.min_nbytes).nbytes == planned.min_nbytes


def test_a_fitted_request_is_not_fitted_again() -> None:
    constraints = [Batch([Request(1 << 20, (1 << 20) - 1, ConstraintPolicy.FIT_TO_QUOTA)])]
    with pytest.warns(match="reduced"):
        planned = plan(TWO, 8 * GIB, constraints=constraints)
    larger = planned.adjusted(16 * GIB)
    assert larger.resolved_constraints == planned.resolved_constraints
    assert larger.reductions == planned.reductions
    with pytest.raises(QuotaError):
        planned.adjusted(4 * GIB)


def test_a_new_typical_step_moves_what_is_beyond_the_floors() -> None:
    planned = plan(TWO, 128 * MIB)
    step = batch_of([(64, 32)] * 64)
    assert slots(planned.adjusted(typical_step=step)) == slots(plan(TWO, 128 * MIB, typical_step=step))
