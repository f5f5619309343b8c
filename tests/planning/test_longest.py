"""The longest request of a quota (F19)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.model import Model
from tests.planning.support import layouts, one_buffer
from vmmcache.errors import ConfigError
from vmmcache.planning import Batch, CacheLayout, Request, longest_in, longest_request, plan


@given(layouts(), st.integers(1, 30_000), st.integers(1, 4), st.integers(0, 300))
def test_the_longest_request_is_the_longest_that_a_plans_slots_hold(
    layout: CacheLayout, quota: int, batch: int, upper: int
) -> None:
    model = Model(layout)
    slots = [group.slots for group in plan(layout, quota, 16, allow_growth=True).groups]

    def holds(length: int) -> bool:
        needs = zip(model.demand(Batch([Request(length, length)])), model.demand(Batch([Request(1, 1)])), strict=True)
        return all(need + (batch - 1) * other <= have for (need, other), have in zip(needs, slots, strict=True))

    longest = longest_request(layout, quota, 16, batch, upper)
    candidates = [upper, *(blocks * model.t for blocks in range(upper // model.t, -1, -1))]
    assert longest == next((length for length in candidates if holds(length)), 0)


def test_a_plan_answers_for_itself() -> None:
    layout = CacheLayout(8, [one_buffer(None, 64)])
    planned = plan(layout, 100 * 64, 64)
    assert longest_in(planned) == 800
    assert longest_in(planned, batch=41) == 480
    assert longest_in(planned, batch=102) == 0


@pytest.mark.parametrize(("field", "value"), [("batch", 0), ("batch", 1.5), ("upper", -1), ("quota", 0)])
def test_wrong_arguments_are_named(field: str, value: object) -> None:
    layout = CacheLayout(8, [one_buffer(None, 64)])
    arguments: dict[str, object] = {"quota": 6400, field: value}
    with pytest.raises(ConfigError) as error:
        longest_request(layout, granule=64, **arguments)  # type: ignore[arg-type]  # wrong on purpose
    assert error.value.field == field
