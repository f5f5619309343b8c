"""S3, S12, S13: the most slots that bytes hold, counts that connectors can take, and refusals that help."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmmcache import MemoryBudget, PlanError, QuotaError
from vmmcache.cache.fitting import AlignmentLoss, PlanInputs, alignment_loss, fit
from vmmcache.cache.sizing import Budget, estimated_budget, measured_budget
from vmmcache.cache.snapshots import Snapshot
from vmmcache.planning import (
    Attention,
    Batch,
    Buffer,
    CacheLayout,
    ConstraintPolicy,
    PlanWarning,
    Request,
    Ssm,
    plan,
)
from vmmcache.planning.layout import Arrangement
from vmmcache.units import GIB, KIB, MIB

GRANULE = 2 * MIB
FIT = ConstraintPolicy.FIT_TO_QUOTA
MLA = 16 * 576 * 2


def of(*slot_bytes: int, count: int = 1, tokens: int = 16) -> CacheLayout:
    """One pool group whose slots have these sizes."""
    buffers = [Buffer(f"b{index}", nbytes) for index, nbytes in enumerate(slot_bytes)]
    return CacheLayout(tokens, [Attention(buffers, count=count)])


def nbytes_of(strides: list[int], slots: int, granule: int) -> int:
    """Bytes that segments of such strides take, by counting granules."""
    return sum(len(range(0, slots * stride, granule)) for stride in strides) * granule


# One group: the most --------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([1, 7, 4096, 18432, 65536, 98304, MIB, 3 * MIB]), min_size=1, max_size=3, unique=True),
    st.integers(1, 3),
    st.sampled_from(["block-major", "layer-major"]),
    st.sampled_from([1, 3 * KIB, 64 * KIB, GRANULE]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 60 * MIB),
)
def test_one_more_slot_or_one_more_step_would_not_fit(
    sizes: list[int],
    count: int,
    arrangement: Arrangement,
    granule: int,
    aligned: bool,
    null_block: bool,
    nbytes: int,
) -> None:
    """S3, S13, against brute force: the bytes of a count are counted granule by granule, segment by segment."""
    inputs = PlanInputs(of(*sizes, count=count), granule, arrangement, null_block=null_block)
    strides = [size * count for size in sizes] if arrangement == "block-major" else sizes * count
    step = inputs.plan().alignment(0) if aligned else 1  # held against counting in tests/planning
    try:
        (group,) = fit(inputs, nbytes, aligned).groups
    except PlanError:
        needed = -(-(1 + null_block) // step) * step
        assert nbytes_of(strides, needed, granule) > nbytes // granule * granule
        return
    assert not aligned or all(group.slots * stride % granule == 0 for stride in strides)
    assert group.slots > null_block
    assert group.nbytes == nbytes_of(strides, group.slots, granule) <= nbytes // granule * granule
    assert nbytes_of(strides, group.slots + step, granule) > nbytes // granule * granule


@pytest.mark.parametrize(
    ("sizes", "step", "slots"),
    [
        ([64 * KIB], 32, 992),
        ([96 * KIB], 64, 960),
        ([64 * KIB, 96 * KIB], 64, 960),
        ([4 * MIB], 1, 1000),
        ([MLA], 1024, 0),
    ],
)
def test_the_steps_that_connectors_can_take(sizes: list[int], step: int, slots: int) -> None:
    """The engine's own figures: 1000 blocks become 992, 960, 1000; of MLA blocks, 1024 make a step."""
    inputs = PlanInputs(of(*sizes), GRANULE)
    nbytes = nbytes_of(sizes, 1000, GRANULE) - (GRANULE if slots == 992 else 0)
    assert inputs.plan().alignment(0) == step
    if slots:
        assert fit(inputs, nbytes, aligned=True).groups[0].slots == slots
    else:
        assert nbytes == 9 * GRANULE  # 1024 slots fit exactly, and no more do
        assert fit(inputs, nbytes, aligned=True).groups[0].slots == 1024


def test_no_whole_step_is_an_error_and_not_a_cache_of_nothing() -> None:
    """31 blocks of 64 KiB become 0, which is refused with the step, and what would do without."""
    inputs = PlanInputs(of(64 * KIB), GRANULE)
    with pytest.raises(PlanError) as refusal:
        fit(inputs, 31 * 64 * KIB, aligned=True)
    assert "the layout" not in str(refusal.value)
    assert "in steps of 32" in str(refusal.value)
    assert isinstance(refusal.value, QuotaError)
    assert (refusal.value.needed, refusal.value.usable, refusal.value.constraint) == (GRANULE, 0, None)
    assert "without which no request runs at all" in str(refusal.value)


def test_what_alignment_loses_is_told_in_slots_and_bytes() -> None:
    """S3: for MLA up to 1023 blocks."""
    inputs = PlanInputs(of(MLA, count=61), GRANULE, "layer-major")
    aligned, free = (fit(inputs, 5 * GIB, aligned) for aligned in (True, False))
    assert alignment_loss(free) == AlignmentLoss((0,), 0)
    lost = alignment_loss(aligned)
    assert lost.slots == (free.groups[0].slots - aligned.groups[0].slots,)
    assert lost.nbytes == free.nbytes - aligned.nbytes > 0
    assert 0 < lost.slots[0] < 1024
    assert aligned.groups[0].slots % 1024 == 0


# Several groups: the planner's split ----------------------------------------------------------------------------------

HYBRID = CacheLayout(
    16,
    [
        Attention([Buffer("key", 64 * KIB), Buffer("value", 64 * KIB)], count=4),
        Attention([Buffer("key", 96 * KIB)], 512, count=3),
        Ssm([Buffer("state", MIB), Buffer("conv", 36 * KIB)], count=2),
    ],
)


@settings(max_examples=60)
@given(
    st.integers(1, 3 * GIB),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, (0.6, 0.3, 0.1)]),
    st.integers(1, 4000),
    st.sampled_from(["block-major", "layer-major"]),
)
def test_several_groups_are_what_the_planner_makes_of_it(
    nbytes: int,
    aligned: bool,
    null_block: bool,
    ratio: tuple[float, ...] | None,
    tokens: int,
    arrangement: Arrangement,
) -> None:
    """S4: from the constraints as they were declared, whatever was planned before."""
    constraints = (Batch([Request(tokens, tokens - 1, count=3)]),)
    inputs = PlanInputs(HYBRID, GRANULE, arrangement, constraints, pool_ratio=ratio, null_block=null_block)
    arguments: dict[str, Any] = {"constraints": constraints, "pool_ratio": ratio, "reserved_slots": int(null_block)}
    try:
        planned = fit(inputs, nbytes, aligned)
    except QuotaError as refusal:
        with pytest.raises(QuotaError):
            plan(HYBRID, nbytes, GRANULE, arrangement=arrangement, aligned=aligned, **arguments)
        assert fit(inputs, refusal.needed, aligned).nbytes == refusal.needed
        return
    assert planned == plan(HYBRID, nbytes, GRANULE, arrangement=arrangement, aligned=aligned, **arguments)
    assert planned.nbytes <= nbytes
    lost = alignment_loss(planned)
    for index, group in enumerate(planned.groups):
        assert group.slots >= group.min_slots
        assert not aligned or group.slots % planned.alignment(index) == 0
        assert aligned or lost.slots[index] == 0


def test_requests_are_fitted_to_what_was_measured_and_aligned() -> None:
    """P4, S3: floors are what the fitted request needs, so that the last suspended one can be resumed on the counts."""
    constraints = (Batch([Request(1 << 20, (1 << 20) - 1, FIT), Request(4, 0, count=63)]),)
    inputs = PlanInputs(HYBRID, GRANULE, constraints=constraints, null_block=True)
    with pytest.warns(PlanWarning, match="reduced to fit the quota"):
        planned = fit(inputs, 2 * GIB, aligned=True)
    (cut,) = planned.reductions
    assert cut.capacity[0] == 1 << 20 > cut.capacity[1] > 0
    assert planned.nbytes <= 2 * GIB
    assert all(group.slots >= group.min_slots for group in planned.groups)
    with pytest.warns(PlanWarning):
        assert fit(inputs, 2 * GIB).reductions[0].capacity[1] >= cut.capacity[1]
    assert inputs.constraints == constraints


# Refusals -------------------------------------------------------------------------------------------------------------


def measured(utilization: float | None = None, free: int = 8 * GIB, **settings: Any) -> Budget:
    start, now = Snapshot(78 * GIB, 80 * GIB, "driver"), Snapshot(free, 80 * GIB, "driver", GIB)
    return measured_budget(MemoryBudget(utilization=utilization, **settings), start, now, GIB)


TOO_LONG = PlanInputs(of(64 * KIB, count=32), GRANULE, constraints=(Batch([Request(500_000, 499_999, count=2)]),))


def refusal_of(inputs: PlanInputs, budget: Budget | None, nbytes: int = 4 * GIB, aligned: bool = False) -> str:
    with pytest.raises(PlanError) as refusal:
        fit(inputs, budget.nbytes if budget else nbytes, aligned, budget)
    return str(refusal.value)


def test_a_refusal_names_the_request_and_the_terms_of_the_budget() -> None:
    """S3."""
    text = refusal_of(TOO_LONG, measured())
    assert "constraints[0].requests[0], 500000 tokens, 2 of them, in pool group 0" in text
    assert "measured: utilization 1, 9 GiB free for it, 69 GiB used beside it, 1 GiB in passing, 512 MiB margin" in text


@pytest.mark.parametrize(
    ("budget", "helps", "does_not"),
    [
        (measured(), ["margin_fraction", "free memory that others hold"], ["utilization above"]),
        (measured(0.95, free=2 * GIB), ["raise utilization above 0.95"], ["graph_estimate"]),
        (measured(0.99, free=2 * GIB, margin_floor=3 * GIB), ["margin_floor"], ["utilization above"]),
        (measured(margin_floor=0, margin_fraction=0), ["free memory"], ["margin_fraction or"]),
        (None, ["Give it more bytes or slots"], ["utilization", "margin"]),
        (
            estimated_budget(
                MemoryBudget(graph_estimate=GIB), Snapshot(78 * GIB, 80 * GIB, "d"), Snapshot(8 * GIB, 80 * GIB, "d"), 0
            ),
            ["raise utilization above 0.92", "lower graph_estimate", "1 GiB for graphs"],
            ["margin"],
        ),
    ],
)
def test_only_knobs_that_turn_something_are_named(budget: Budget | None, helps: list[str], does_not: list[str]) -> None:
    """S3: never "raise utilization" where it is 1, nor where it is not what limits."""
    text = refusal_of(TOO_LONG, budget)
    assert [knob for knob in helps if knob not in text] == []
    assert [knob for knob in does_not if knob in text] == []
    assert "shorter or fewer requests" in text


def test_utilization_is_named_where_it_is_what_limits_and_only_there() -> None:
    """The same shortage twice: once the share binds, once the device."""
    assert measured(0.95, free=2 * GIB).limited_by == "utilization"
    assert measured(0.99, free=2 * GIB, margin_floor=3 * GIB).limited_by == "memory"


def test_a_refusal_says_how_long_a_request_could_be() -> None:
    budget = measured()
    longest = TOO_LONG.longest(budget.nbytes)
    assert longest == budget.nbytes // (64 * KIB * 32) * 16
    assert f"the longest single request that fits has {longest} tokens" in refusal_of(TOO_LONG, budget)
    assert TOO_LONG.longest(0) == 0
    # Below what the layout itself needs there is no cache, and so no request in it.
    layout = CacheLayout(16, [Attention([Buffer("key", MIB)], window=100, count=2)])
    windowed = PlanInputs(layout, GRANULE, constraints=(Batch([Request(16)]),))
    least = windowed._replace(constraints=()).plan().nbytes
    assert windowed.longest(least - 1) == 0 < windowed.longest(least)
    assert "that fits has 0 tokens" in refusal_of(windowed, None, nbytes=least - 1)


def test_nothing_to_fit_into_is_refused_before_any_plan() -> None:
    text = refusal_of(TOO_LONG, measured(free=0), aligned=True)
    assert "the cache gets 0 bytes" in text
    assert "no slot at all" in text
    assert "the cache was given 0 bytes" in refusal_of(TOO_LONG, None, nbytes=0)


def test_a_refusal_of_the_lower_bound_is_told_apart() -> None:
    inputs = PlanInputs(of(64 * KIB, count=32), GRANULE, constraints=(Batch([Request(500_000, 0, FIT)]),))
    with pytest.raises(QuotaError) as refusal:
        fit(inputs, GIB)
    assert refusal.value.cause == "lower_bound"
    assert refusal.value.constraint == 0
