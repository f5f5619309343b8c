"""FIT_TO_QUOTA, against trying every candidate from the top (P4, P5, P6)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.planning.model import Model
from tests.planning.support import FIT, REWINDS, SHARES, batch_of, batches, layouts, one_buffer
from vmmcache.errors import ConfigError, QuotaError
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, PlanWarning, Reduction, Request, plan
from vmmcache.planning.layout import Arrangement
from vmmcache.planning.workload import lower_bound

pytestmark = pytest.mark.filterwarnings("ignore::vmmcache.planning.PlanWarning")

FULL = CacheLayout(8, [one_buffer(None, 64)])


def marked(constraints: Sequence[Batch]) -> bool:
    return any(request.policy is FIT for batch in constraints for request in batch.requests)


@given(
    layouts(),
    st.lists(batches(), min_size=1, max_size=2),
    SHARES,
    REWINDS,
    st.sampled_from([1, 7, 64]),
    st.integers(1, 40_000),
    st.booleans(),
)
def test_the_fit_is_the_largest_of_all_candidates(
    layout: CacheLayout,
    constraints: list[Batch],
    share: float,
    rewind: int | None,
    granule: int,
    quota: int,
    exact: bool,
) -> None:
    assume(marked(constraints))
    best = Model(layout, rewind).best_fit(constraints, Fraction(str(share)), granule, quota, exact)
    arguments: dict[str, Any] = {
        "constraints": constraints,
        "max_util_for_resume": share,
        "scratch_rewind": rewind,
        "token_exact": exact,
    }
    if best is None:
        with pytest.raises(QuotaError) as refusal:
            plan(layout, quota, granule, **arguments)
        assert refusal.value.needed > refusal.value.usable
        return
    planned = plan(layout, quota, granule, **arguments)
    assert list(planned.resolved_constraints) == best
    assert planned.usable is not None
    assert planned.nbytes <= planned.usable


@given(
    layouts(),
    st.lists(batches(longest=30), min_size=1, max_size=2),
    REWINDS,
    st.sampled_from(["block-major", "layer-major"]),
    st.booleans(),
    st.integers(1, 20_000),
)
def test_the_fit_is_the_largest_whatever_a_candidate_costs(
    layout: CacheLayout,
    constraints: list[Batch],
    rewind: int | None,
    arrangement: Arrangement,
    sustained: bool,
    quota: int,
) -> None:
    """Other arrangements and sustained demand: the cost of a candidate is that of a plan for it alone."""
    assume(marked(constraints))
    options: dict[str, Any] = {"scratch_rewind": rewind, "arrangement": arrangement, "sustained": sustained}
    model = Model(layout)
    try:
        cost_of_all = plan(layout, granule=16, constraints=constraints, **options).min_nbytes
    except ConfigError:
        assert arrangement == "layer-major"
        return
    everything = [request for batch in constraints for request in batch.requests if request.policy is FIT]
    top = max(request.capacity for request in everything)
    bottom = min(lower_bound(r, b.system_prompt_length) for b in constraints for r in b.requests if r.policy is FIT)
    levels = [level for level in range(bottom, top + 1) if level in (bottom, top) or level % model.t == 0]
    candidates = ([model.at(batch, level) for batch in constraints] for level in reversed(levels))
    usable = quota // 16 * 16
    best = next(
        (c for c in candidates if plan(layout, granule=16, constraints=c, **options).min_nbytes <= usable), None
    )
    if best is None:
        assert cost_of_all > usable
        with pytest.raises(QuotaError):
            plan(layout, quota, 16, constraints=constraints, **options)
    else:
        assert list(plan(layout, quota, 16, constraints=constraints, **options).resolved_constraints) == best


@given(layouts(), st.lists(batches(), min_size=1, max_size=2), REWINDS, st.integers(1, 2000))
def test_the_quota_that_a_refusal_names_is_enough(
    layout: CacheLayout, constraints: list[Batch], rewind: int | None, quota: int
) -> None:
    refusal = refused(layout, quota, constraints, rewind)
    if refusal is None:
        return
    plan(layout, refusal.needed, 8, constraints=constraints, scratch_rewind=rewind)
    again = refused(layout, refusal.usable or 1, constraints, rewind)
    assert again is not None
    assert (again.cause, again.needed) == (refusal.cause, refusal.needed)


def refused(layout: CacheLayout, quota: int, constraints: list[Batch], rewind: int | None) -> QuotaError | None:
    try:
        plan(layout, quota, 8, constraints=constraints, scratch_rewind=rewind)
    except QuotaError as error:
        return error
    return None


@given(layouts(), batches(), st.integers(1, 30_000), st.integers(0, 3000))
def test_a_larger_quota_never_shortens_a_request(layout: CacheLayout, batch: Batch, quota: int, more: int) -> None:
    assume(marked([batch]))
    try:
        less = plan(layout, quota, 16, constraints=[batch])
    except QuotaError:
        return
    longer = plan(layout, quota + more, 16, constraints=[batch])
    for one, other in zip(less.resolved_constraints[0].requests, longer.resolved_constraints[0].requests, strict=True):
        assert one.capacity <= other.capacity


def test_capacity_and_history_shrink_together_and_nothing_else_does() -> None:
    fixed = Batch([Request(16, 3), Request(9, 9)], system_prompt_length=8)
    batch = Batch([Request(5, 1), Request(8000, 7935, FIT)])
    planned = plan(FULL, 100 * 64, 64, constraints=[fixed, batch], max_util_for_resume=1)
    assert planned.resolved_constraints[0] is fixed
    assert planned.resolved_constraints[1].requests == (Request(5, 1), Request(792, 727, FIT))
    assert planned.reductions == (Reduction(1, 1, (8000, 792), (7935, 727)),)


def test_the_input_is_never_changed() -> None:
    constraints = [Batch([Request(8000, 7999, FIT)])]
    before = copy.deepcopy(constraints)
    plan(FULL, 100 * 64, 64, constraints=constraints)
    assert constraints == before


def test_several_marked_requests_share_one_level_and_the_longest_shrink_first() -> None:
    constraints = [Batch([Request(800, 799, FIT), Request(240, 200, FIT)]), Batch([Request(640, 0, FIT), Request(80)])]
    planned = plan(FULL, 90 * 64, 64, constraints=constraints, max_util_for_resume=1)
    first, second = planned.resolved_constraints
    assert [request.capacity for request in first.requests] == [480, 240]
    # The second batch's marked request writes all of its tokens in one step: it cannot shrink at all.
    assert [request.capacity for request in second.requests] == [640, 80]


def test_the_lower_bound_keeps_the_prompt_that_the_batch_shares() -> None:
    constraints = [Batch([Request(800, 799, FIT), Request(800, 799, FIT)], system_prompt_length=400)]
    least = plan(FULL, 50 * 64, 64, constraints=constraints, max_util_for_resume=1)
    assert [request.capacity for request in least.resolved_constraints[0].requests] == [400, 400]
    with pytest.raises(QuotaError) as refusal:
        plan(FULL, 49 * 64, 64, constraints=constraints, max_util_for_resume=1)
    assert (refusal.value.cause, refusal.value.needed) == ("lower_bound", 50 * 64)


def test_a_copied_entry_is_cut_in_all_copies_and_reported_once() -> None:
    with pytest.warns(PlanWarning) as told:
        planned = plan(FULL, 40 * 64, 64, constraints=[Batch([Request(800, 799, FIT, 4)])], max_util_for_resume=1)
    assert planned.resolved_constraints[0].requests == (Request(80, 79, FIT, 4),)
    assert len(planned.reductions) == len(told) == 1


@pytest.mark.parametrize("headroom", [0, 1, 65])
def test_headroom_is_kept(headroom: int) -> None:
    request = Request(8000, 8000 - headroom, FIT)
    (fitted,) = plan(FULL, 50 * 64, 64, constraints=[Batch([request])]).resolved_constraints[0].requests
    assert fitted.capacity - fitted.history_length == headroom
    assert fitted.capacity == 8 * 48  # ceil(48 / 0.97) slots


@pytest.mark.parametrize(("quota", "by_block", "by_token"), [(29, 32, 39), (36, 32, 95)])
def test_token_exact_goes_beyond_the_last_whole_block(quota: int, by_block: int, by_token: int) -> None:
    """A chunk of 31 tokens writes three whole blocks, to pass through scratch, only if it starts at a block's end."""
    layout = CacheLayout(8, [one_buffer(None, 64), Attention([Buffer("key", 64)], 3, count=8)])
    constraints = [Batch([Request(400, 369, FIT)])]
    for exact, expected in ((False, by_block), (True, by_token)):
        planned = plan(
            layout,
            quota * 64,
            64,
            constraints=constraints,
            max_util_for_resume=1,
            scratch_rewind=0,
            token_exact=exact,
        )
        assert planned.resolved_constraints[0].requests[0].capacity == expected


def test_a_lower_bound_that_costs_more_than_the_next_block_is_no_reason_to_refuse() -> None:
    """P5: at 65 tokens the window still straddles a block that it has left at 68."""
    layout = CacheLayout(4, [one_buffer(None, 8), Attention([Buffer("key", 16)], 17, 6, count=4)])
    request = Request(400, 335, FIT)
    arguments: dict[str, Any] = {"granule": 8, "scratch_rewind": 0, "max_util_for_resume": 1}
    at_bound = plan(layout, constraints=[batch_of([(65, 0)])], **arguments).min_nbytes
    at_block = plan(layout, constraints=[batch_of([(68, 3)])], **arguments).min_nbytes
    assert at_block < at_bound
    planned = plan(layout, at_block, constraints=[Batch([request])], **arguments)
    assert planned.resolved_constraints[0].requests[0].capacity == 68


def test_one_request_that_leaves_its_lower_bound_may_make_room_for_another() -> None:
    """At 53 tokens the second one's chunk has a scratch block fewer than at 56, where the first is longer too."""
    layout = CacheLayout(8, [one_buffer(None, 2), Attention([Buffer("key", 1)], 15, 12, count=4)])
    constraints = [Batch([Request(192, 191, FIT), Request(147, 94, FIT)])]
    planned = plan(layout, 65, 1, constraints=constraints, scratch_rewind=0, max_util_for_resume=1)
    assert [request.capacity for request in planned.resolved_constraints[0].requests] == [56, 56]


def test_a_longer_request_may_need_less_while_its_prompt_becomes_stale() -> None:
    """Shared blocks leave one by one, and new ones cost a fraction each, since they pass through scratch."""
    layout = CacheLayout(8, [one_buffer(None, 2), Attention([Buffer("key", 4)], 11, count=4)])
    constraints = [Batch([Request(102, 56, FIT)], 40)]
    planned = plan(layout, 101, 1, constraints=constraints, scratch_rewind=0, max_util_for_resume=1)
    assert planned.resolved_constraints[0].requests[0].capacity == 80


def test_a_request_keeps_the_part_of_the_prompt_that_fills_no_block() -> None:
    """12 tokens of prompt are one shared block and half of another, which every request has for itself."""
    constraints = [Batch([Request(800, 799, FIT)], 12)]
    kept = plan(FULL, 2 * 64, 64, constraints=constraints, max_util_for_resume=1)
    assert kept.resolved_constraints[0].requests[0].capacity == 16
    with pytest.raises(QuotaError) as refusal:
        plan(FULL, 64, 64, constraints=constraints, max_util_for_resume=1)
    assert (refusal.value.cause, refusal.value.needed) == ("lower_bound", 2 * 64)


def test_what_is_fitted_is_the_usable_quota() -> None:
    """One byte short of the next granule buys no more than none of it."""
    planned = plan(FULL, 51 * 64 - 1, 64, constraints=[Batch([Request(8000, 7999, FIT)])], max_util_for_resume=1)
    assert planned.usable == planned.nbytes == 50 * 64
    assert planned.resolved_constraints[0].requests[0].capacity == 400


def test_what_cannot_shrink_enough_is_told_from_what_cannot_shrink_at_all() -> None:
    long = Request(8000, 4000, FIT)
    with pytest.raises(QuotaError) as refusal:
        plan(FULL, 40 * 64, 64, constraints=[Batch([long])], max_util_for_resume=1)
    assert (refusal.value.cause, refusal.value.needed, refusal.value.usable) == ("lower_bound", 500 * 64, 40 * 64)
    assert "constraints[0]" in str(refusal.value)
    with pytest.raises(QuotaError) as refusal:
        plan(FULL, 40 * 64 + 63, 64, constraints=[Batch([long]), Batch([Request(800)])], max_util_for_resume=1)
    assert (refusal.value.cause, refusal.value.usable, refusal.value.configured) == ("fixed", 40 * 64, 40 * 64 + 63)


def test_what_binds_is_named_with_the_bytes_that_are_short() -> None:
    layout = CacheLayout(8, [one_buffer(8, 16), one_buffer(None, 64)])
    constraints = [Batch([Request(80)]), Batch([Request(8000, 7999, FIT)])]
    planned = plan(layout, 50 * 64, 64, constraints=constraints, max_util_for_resume=1)
    asked = plan(layout, constraints=constraints, granule=64, max_util_for_resume=1).min_nbytes
    assert planned.binding == (1, 1, asked - 50 * 64)


def test_growth_and_fitting_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="allow_growth"):
        plan(FULL, 64, 64, constraints=[Batch([Request(8, 0, FIT)])], allow_growth=True)


def test_a_request_that_is_shorter_than_its_prompt_keeps_its_length() -> None:
    planned = plan(FULL, 40 * 64, 64, constraints=[Batch([Request(20, 19, FIT), Request(8000, 7999, FIT)], 80)])
    assert planned.resolved_constraints[0].requests[0] == Request(20, 19, FIT)


def test_without_a_quota_nothing_shrinks() -> None:
    planned = plan(FULL, constraints=[Batch([Request(8000, 7999, FIT)])])
    assert planned.reductions == ()
    assert planned.demand == ((1000,),)
