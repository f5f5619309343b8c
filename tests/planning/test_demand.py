"""Slots of a batch, against a model that goes through blocks one by one (P1, P2, P12)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.model import Cycle, Model
from tests.planning.support import REWINDS, SHARES, batch_of, batches, layouts, one_buffer, requests
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, ConstraintPolicy, Request, Ssm, plan
from vmmcache.planning.demand import Demand, stale_range


@given(layouts(), batches(), REWINDS)
def test_demand_is_what_counting_blocks_gives(layout: CacheLayout, batch: Batch, rewind: int | None) -> None:
    (demand,) = plan(layout, constraints=[batch], scratch_rewind=rewind).demand
    assert list(demand) == Model(layout, rewind).demand(batch)


@given(layouts(), st.lists(batches(), max_size=3), SHARES, REWINDS)
def test_floors_are_the_smallest_that_hold_every_batch(
    layout: CacheLayout, constraints: list[Batch], share: float, rewind: int | None
) -> None:
    planned = plan(layout, constraints=constraints, max_util_for_resume=share, scratch_rewind=rewind)
    expected = Model(layout, rewind).floors(constraints, Fraction(str(share)))
    assert [group.min_slots for group in planned.groups] == expected
    assert [group.slots for group in planned.groups] == expected


@pytest.mark.parametrize("t", [4, 8, 32])
@pytest.mark.parametrize(("window", "sinks"), [(None, 0), (8, 0), (128, 0), (128, 33), (50, 9)])
def test_stale_blocks_are_those_that_no_later_token_can_see(t: int, window: int | None, sinks: int) -> None:
    sink_blocks = -(-sinks // t)
    for history in range(400):
        visible = history - window if window is not None else -1
        stale = [b for b in range(history // t + 1) if b >= sink_blocks and b * t + t - 1 <= visible]
        assert list(range(*stale_range(t, window, sink_blocks, history))) == stale


def test_the_token_about_to_be_written_still_sees_the_whole_window() -> None:
    """At history 16 with window 8, position 16 sees 9 to 16: block 1 (tokens 8 to 15) is needed."""
    assert stale_range(8, 8, 0, 15) == (0, 1)
    assert stale_range(8, 8, 0, 16) == (0, 1)
    assert stale_range(8, 8, 0, 22) == (0, 1)
    assert stale_range(8, 8, 0, 23) == (0, 2)


def test_capacity_nought_costs_no_block_and_one_state() -> None:
    layout = CacheLayout(8, [one_buffer(None, 3), Ssm([Buffer("state", 5)])])
    assert plan(layout, constraints=[Batch([Request(0)])]).demand == ((0, 1),)


def test_a_prompt_shorter_than_a_block_shares_nothing() -> None:
    layout = CacheLayout(8, [one_buffer(None, 3)])
    assert plan(layout, constraints=[Batch([Request(8), Request(8)], 7)]).demand == ((2,),)
    assert plan(layout, constraints=[Batch([Request(8), Request(8)], 8)]).demand == ((1,),)


def test_a_prompt_without_requests_costs_nothing() -> None:
    layout = CacheLayout(8, [one_buffer(None, 3), one_buffer(8, 4)])
    assert plan(layout, constraints=[Batch([], 800)]).demand == ((0, 0),)


def test_a_prompt_block_leaves_when_it_is_stale_for_the_slowest() -> None:
    layout = CacheLayout(8, [one_buffer(8, 3)])
    assert plan(layout, constraints=[batch_of([(80, 0), (80, 79)], 32)]).demand[0] == (4 + 6 + 1,)
    assert plan(layout, constraints=[batch_of([(80, 79), (80, 79)], 32)]).demand[0] == (0 + 1 + 1,)


def test_scratch_blocks_round_up_for_each_request_by_itself() -> None:
    layout = CacheLayout(8, [Attention([Buffer("key", 8)], 8, count=16)])
    one = plan(layout, constraints=[batch_of([(80, 0)])], scratch_rewind=0).demand[0][0]
    assert plan(layout, constraints=[batch_of([(80, 0)] * 3)], scratch_rewind=0).demand[0][0] == 3 * one


def test_scratch_stays_out_of_a_shared_prompt() -> None:
    """Blocks of the prompt are not a request's own, so they cannot pass through its scratch slots."""
    layout = CacheLayout(8, [Attention([Buffer("key", 8)], 8, count=16)])
    planned = plan(layout, constraints=[Batch([Request(80, 0)], 80)], scratch_rewind=0)
    assert planned.demand == ((10,),)


def test_rewind_beyond_the_capacity_switches_scratch_off() -> None:
    layout = CacheLayout(8, [Attention([Buffer("key", 8)], 8, count=16)])
    off = plan(layout, constraints=[batch_of([(80, 0)])]).demand
    assert plan(layout, constraints=[batch_of([(80, 0)])], scratch_rewind=80).demand == off


@given(
    layouts(),
    st.lists(requests(longest=24, policies=[ConstraintPolicy.FIXED]), min_size=1, max_size=2),
    st.sampled_from([0, 0, 5, 12]),
    REWINDS,
)
def test_sustained_demand_is_the_worst_of_all_phases(
    layout: CacheLayout, entries: list[Request], prompt: int, rewind: int | None
) -> None:
    """P12: every request at a phase of its own; 100 tokens on, all windows here are in their steady state."""
    model = Model(layout, rewind)
    copies = [request for request in entries for _ in range(min(request.count, 2))][:2]
    batch = Batch([Request(request.capacity, request.history_length) for request in copies], prompt)
    worst = [
        sum(
            max(
                _at(model, cycle, batch, phases)
                for phases in (_phases(model.t, len(copies)) if cycle.window else [(0, 0)])
            )
            for cycle in group
        )
        for group in model.groups
    ]
    assert Demand(layout, rewind, sustained=True).of(batch) == worst


def _phases(t: int, requests: int) -> list[tuple[int, ...]]:
    """How far each request has moved on: one of them anywhere, the other far ahead at any place within a block."""
    if requests == 1:
        return [(shift,) for shift in range(100)]
    return [pair for near in range(100) for far in range(100 - t, 100) for pair in ((near, far), (far, near))]


def _at(model: Model, cycle: Cycle, batch: Batch, phases: tuple[int, ...]) -> int:
    moved = [
        Request(request.capacity + shift, request.history_length + shift)
        for request, shift in zip(batch.requests, phases, strict=False)
    ]
    shared = model.common(cycle, Batch(moved, batch.system_prompt_length))
    return shared + sum(model.own(cycle, request, model.prompt(batch)) for request in moved)


def test_sustained_counts_the_straddled_block_of_a_decoding_request() -> None:
    """At a moment a window of 32 may lie in one block; over time it needs two."""
    layout = CacheLayout(32, [one_buffer(32, 1)])
    batch = batch_of([(32, 31)] * 8)
    assert plan(layout, constraints=[batch]).demand == ((8,),)
    assert plan(layout, constraints=[batch], sustained=True).demand == ((16,),)


def test_sustained_leaves_the_typical_step_alone() -> None:
    layout = CacheLayout(32, [one_buffer(32, 1 << 20), one_buffer(None, 1 << 20)])
    step = batch_of([(32, 31)] * 64)
    momentary = plan(layout, 1 << 30, typical_step=step)
    assert plan(layout, 1 << 30, typical_step=step, sustained=True).groups == momentary.groups
