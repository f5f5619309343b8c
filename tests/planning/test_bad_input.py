"""Every wrong input is a ConfigError that names the field, and is never planned."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.planning.support import one_buffer
from vmmcache.errors import ConfigError, PlanError, QuotaError
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, PlanWarning, Request, Ssm, plan
from vmmcache.planning.floors import resume_share

KEY = [Buffer("key", 64)]
LAYOUT = CacheLayout(8, [one_buffer(8, 64), one_buffer(None, 128)])
NAN, INF, HUGE = math.nan, math.inf, 2**63

WRONG: list[tuple[str, Callable[..., object], Any]] = [
    ("role", lambda value: Buffer(value, 64), ["", None, 3]),
    ("nbytes", lambda value: Buffer("key", value), [0, -1, 1.0, NAN, True, "64", None, HUGE]),
    ("tokens_per_block", lambda value: Buffer("key", 64, value), [0, -8, 4.0, HUGE]),
    ("tokens_per_block", lambda value: CacheLayout(8, [Attention([Buffer("key", 64, value)])]), [3, 16]),
    ("tokens_per_block", lambda value: Ssm([Buffer("state", 64, value)]), [8]),
    ("buffers", Attention, [[], "key", KEY[0], 3, None, [*KEY, *KEY]]),
    ("buffers[1]", lambda value: Attention([*KEY, value]), [("value", 64), None]),
    ("buffers", Ssm, [[], [*KEY, *KEY]]),
    ("window", lambda value: Attention(KEY, value), [0, -1, 8.0, NAN, True, HUGE]),
    ("sink_tokens", lambda value: Attention(KEY, 8, value), [-1, 1.5, NAN, "4", HUGE]),
    ("sink_tokens", lambda value: Attention(KEY, None, value), [1]),
    ("count", lambda value: Attention(KEY, count=value), [0, -1, 1.0, True, 2**31]),
    ("count", lambda value: Ssm(KEY, count=value), [0, 2**31]),
    ("name", lambda value: Attention(KEY, name=value), ["", 3]),
    ("tokens_per_block", lambda value: CacheLayout(value, [one_buffer(None, 64)]), [0, -1, 8.0, NAN, None, HUGE]),
    ("layers", lambda value: CacheLayout(8, value), [[], None, one_buffer(None, 64), "layers"]),
    ("layers[0]", lambda value: CacheLayout(8, [value]), [None, "attention", KEY[0]]),
    ("layers", lambda value: CacheLayout(8, [Attention(KEY, name=value), Ssm(KEY, name=value)]), ["layer.0"]),
    ("capacity", Request, [-1, 1.0, NAN, None, "8", True, HUGE]),
    ("history_length", lambda value: Request(8, value), [-1, 9, 4.0, NAN, None, HUGE]),
    ("policy", lambda value: Request(8, 0, value), ["fixed", None, 0, ["FIXED", "FIT_TO_QUOTA"], "FIXED|FIT_TO_QUOTA"]),
    ("count", lambda value: Request(8, count=value), [0, -1, 1.0, True, 2**31]),
    ("requests", Batch, [None, 3, Request(8), "requests"]),
    ("requests[0]", lambda value: Batch([value]), [(8, 0), None]),
    ("system_prompt_length", lambda value: Batch([], value), [-1, 1.0, NAN, None, HUGE]),
    ("layout", lambda value: plan(value, 1 << 20), [None, [one_buffer(None, 64)]]),
    ("quota", lambda value: plan(LAYOUT, value), [0, -1, 1e9, NAN, "1GiB", True, HUGE]),
    ("granule", lambda value: plan(LAYOUT, 1 << 30, value), [0, -1, 2.0, NAN, None, HUGE]),
    ("constraints", lambda value: plan(LAYOUT, constraints=value), [Batch([]), 3]),
    ("constraints[0]", lambda value: plan(LAYOUT, constraints=[value]), [Request(8), [Request(8)], None]),
    ("typical_step", lambda value: plan(LAYOUT, typical_step=value), [Request(8), [Request(8)], 3]),
    ("pool_ratio", lambda value: plan(LAYOUT, pool_ratio=value), [[], [1.0], [0.4, 0.5], [0.5, 0.500002], "ab", 1, {}]),
    ("pool_ratio", lambda value: plan(LAYOUT, pool_ratio=value), [[0.25, 0.25, 0.5]]),
    ("pool_ratio[0]", lambda value: plan(LAYOUT, pool_ratio=value), [[0, 1], [-0.1, 1.1], [NAN, 1.0], [None, 1.0]]),
    ("pool_ratio[1]", lambda value: plan(LAYOUT, pool_ratio=value), [[0.5, INF], [0.5, "0.5"], [0.5, True]]),
    ("max_util_for_resume", lambda value: plan(LAYOUT, max_util_for_resume=value), [-0.1, NAN, INF, -INF, None, "1"]),
    ("max_util_for_resume", lambda value: plan(LAYOUT, max_util_for_resume=value), [True, Decimal("NaN"), -1]),
    ("scratch_rewind", lambda value: plan(LAYOUT, scratch_rewind=value), [-1, 1.5, NAN, True, HUGE]),
    ("arrangement", lambda value: plan(LAYOUT, arrangement=value), ["row-major", None, 0, ["block-major"]]),
]
TABLE = [(field, make, value) for field, make, values in WRONG for value in values]


@pytest.mark.parametrize(("field", "make", "value"), TABLE, ids=[f"{row[0]}={row[2]!r:.30}" for row in TABLE])
def test_a_wrong_input_is_refused_by_the_name_of_its_field(
    field: str, make: Callable[[object], object], value: object
) -> None:
    with pytest.raises(ConfigError) as error:
        make(value)
    assert error.value.field == field
    assert str(error.value).startswith(f"{field}=")


def test_integers_of_other_libraries_are_integers() -> None:
    numpy = pytest.importorskip("numpy")
    layout = CacheLayout(numpy.int64(8), [Attention([Buffer("key", numpy.int32(64))], numpy.int16(8))])
    assert layout == CacheLayout(8, [one_buffer(8, 64)])
    assert type(layout.tokens_per_block) is int
    assert plan(layout, numpy.int64(1 << 30), constraints=[Batch([Request(numpy.int64(80))])]).groups[0].min_slots > 9


def test_a_share_of_nought_scales_nothing_and_says_so() -> None:
    batch = Batch([Request(80, 79)] * 4)
    with pytest.warns(PlanWarning, match="no finite floor") as told:
        planned = plan(LAYOUT, constraints=[batch], max_util_for_resume=0)
    assert told[0].filename == __file__
    assert planned.groups == plan(LAYOUT, constraints=[batch], max_util_for_resume=1).groups


@pytest.mark.parametrize("share", [1, 1.0, 1.1, 5, 10**400])
def test_a_share_of_one_or_more_scales_nothing(share: float) -> None:
    assert resume_share(share) == 1


@pytest.mark.parametrize(
    ("share", "slots"), [(0.7, 30), (0.9, 24), (0.95, 23), (0.97, 22), (0.5, 42), (1e-7, 21 * 10**7)]
)
def test_a_float_means_the_decimal_that_people_wrote(share: float, slots: int) -> None:
    """P10: 21 / 0.7 is 30; in floating point its ceiling is 31."""
    layout = CacheLayout(8, [one_buffer(None, 64)])
    planned = plan(layout, constraints=[Batch([Request(8, count=21)])], max_util_for_resume=share)
    assert planned.groups[0].min_slots == slots


def test_more_slots_than_can_be_numbered_are_refused() -> None:
    layout = CacheLayout(1, [one_buffer(None, 1)])
    with pytest.raises(PlanError, match="2147483647") as error:
        plan(layout, constraints=[Batch([Request(2**31)])], max_util_for_resume=1)
    assert not isinstance(error.value, QuotaError)
    assert (
        plan(layout, constraints=[Batch([Request(2**31 - 1)])], max_util_for_resume=1).groups[0].min_slots == 2**31 - 1
    )


def test_a_request_is_fitted_to_the_slots_that_can_be_numbered() -> None:
    layout = CacheLayout(1, [one_buffer(None, 1)])
    constraints = [Batch([Request(2**40, 2**40 - 1, "FIT_TO_QUOTA")])]  # type: ignore[arg-type]  # by its name
    with pytest.warns(PlanWarning):
        planned = plan(layout, 1 << 60, constraints=constraints, max_util_for_resume=1)
    assert planned.resolved_constraints[0].requests[0].capacity == 2**31 - 1


def test_a_lower_bound_beyond_what_can_be_numbered_is_refused() -> None:
    layout = CacheLayout(1, [one_buffer(None, 1)])
    with pytest.raises(PlanError, match="2147483647"):
        plan(layout, 1 << 60, constraints=[Batch([Request(2**40, 0, "FIT_TO_QUOTA")])])  # type: ignore[arg-type]


def test_a_quota_below_one_granule_is_no_quota() -> None:
    with pytest.raises(QuotaError) as refusal:
        plan(LAYOUT, 100, 4096)
    assert (refusal.value.usable, refusal.value.configured, refusal.value.needed) == (0, 100, 2 * 4096)
