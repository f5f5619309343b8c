"""Slots really handed out, one by one and behind the resume gate, prove that a plan is enough (I13, S8)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.planning.model import Allocator, Model
from tests.planning.support import REWINDS, SHARES, batches, layouts
from vmmcache.errors import QuotaError
from vmmcache.planning import Batch, CacheLayout, plan


def apart(batch: Batch) -> Batch:
    """The batch with every copy as an entry of its own."""
    entries = [request._replace(count=1) for request in batch.requests for _ in range(request.count)]
    return Batch(entries, batch.system_prompt_length)


@given(layouts(), batches(), SHARES, REWINDS, st.randoms(use_true_random=False))
def test_floors_admit_a_declared_batch_to_its_last_request_in_any_order(
    layout: CacheLayout, batch: Batch, share: float, rewind: int | None, random: st.DataObject
) -> None:
    batch = apart(batch)
    planned = plan(layout, constraints=[batch], max_util_for_resume=share, scratch_rewind=rewind)
    order = list(range(len(batch.requests)))
    random.shuffle(order)  # type: ignore[attr-defined]  # st.randoms draws a random.Random
    allocator = Allocator(Model(layout, rewind), [group.min_slots for group in planned.groups], Fraction(str(share)))
    assert allocator.admit(batch, order) == len(order)


@given(layouts(), batches(), REWINDS)
def test_one_slot_fewer_than_a_constraint_asks_for_refuses_a_request(
    layout: CacheLayout, batch: Batch, rewind: int | None
) -> None:
    batch = apart(batch)
    planned = plan(layout, constraints=[batch], max_util_for_resume=1, scratch_rewind=rewind)
    slots = [group.min_slots for group in planned.groups]
    for index, group in enumerate(planned.groups):
        if group.set_by is None:
            continue
        fewer = [count - (place == index) for place, count in enumerate(slots)]
        allocator = Allocator(Model(layout, rewind), fewer, Fraction(1))
        assert allocator.admit(batch, range(len(batch.requests))) < len(batch.requests)


@pytest.mark.filterwarnings("ignore::vmmcache.planning.PlanWarning")
@given(layouts(), batches(), SHARES, REWINDS, st.integers(1, 40_000))
def test_a_fitted_batch_is_admitted_by_the_pools_that_were_planned_for_it(
    layout: CacheLayout, batch: Batch, share: float, rewind: int | None, quota: int
) -> None:
    assume(batch.requests)
    try:
        planned = plan(layout, quota, 32, constraints=[batch], max_util_for_resume=share, scratch_rewind=rewind)
    except QuotaError:
        return
    resolved = apart(planned.resolved_constraints[0])
    allocator = Allocator(Model(layout, rewind), [group.slots for group in planned.groups], Fraction(str(share)))
    assert allocator.admit(resolved, range(len(resolved.requests))) == len(resolved.requests)


def test_the_gate_refuses_the_last_request_where_floors_are_not_scaled() -> None:
    """What scaling is for: 32 requests on 32 slots, and 31/32 is more than 0.95."""
    from tests.planning.support import one_buffer
    from vmmcache.planning import Request

    layout = CacheLayout(32, [one_buffer(None, 64)])
    batch = Batch([Request(1)] * 32)
    model = Model(layout)
    floors = [group.min_slots for group in plan(layout, constraints=[batch], max_util_for_resume=0.95).groups]
    assert floors == [34]
    assert Allocator(model, [32], Fraction("0.95")).admit(batch, range(32)) == 31
    assert Allocator(model, floors, Fraction("0.95")).admit(batch, range(32)) == 32
