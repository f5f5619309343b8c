"""S2, S6: what warm-up ran, what it left out, and ids of dummy work that stay where there is memory."""

from __future__ import annotations

import logging
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmmcache
from vmmcache import ConfigError, wrap_slots
from vmmcache.cache.warmup import WarmupLog, WarmupShape
from vmmcache.planning import EngineLimits

LIMITS = EngineLimits(8192, 131072, 256, graph_batch_sizes=(1, 64, 128))


def test_every_shape_is_missing_until_something_is_said_of_it() -> None:
    log = WarmupLog()
    assert log.missing == tuple(WarmupShape)
    log.ran("mixed_step", tokens=8192, requests=17)
    log.skipped("encoder", "the model has none")
    assert log.missing == ("prompt_logprobs", "sampler", "rejection_sampler", "largest_graph")
    assert [(one.shape, dict(one.facts)) for one in log.exercised] == [("mixed_step", {"tokens": 8192, "requests": 17})]
    assert [tuple(one) for one in log.left_out] == [("encoder", "the model has none")]


def test_a_shape_that_is_left_out_is_a_warning_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """S6: never silence."""
    with caplog.at_level(logging.WARNING):
        WarmupLog().skipped("prompt_logprobs", "not enough memory for 1024 rows")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "did not run prompt_logprobs: not enough memory for 1024 rows" in caplog.text


def test_what_ran_counts_whatever_else_was_said(caplog: pytest.LogCaptureFixture) -> None:
    log = WarmupLog()
    log.skipped("sampler", "later")
    log.ran("sampler")
    assert log.left_out == ()
    caplog.clear()
    log.skipped("sampler", "changed my mind")
    assert (log.left_out, caplog.records) == ((), [])
    assert "sampler" not in log.missing


@pytest.mark.parametrize(
    ("shape", "facts", "told"),
    [
        ("mixed_step", {"tokens": 4096}, "tokens=4096 of 8192"),
        ("prompt_logprobs", {"rows": 1023}, "rows=1023 of 1024"),
        ("sampler", {"requests": 255}, "requests=255 of 256"),
        ("rejection_sampler", {"requests": 1}, "requests=1 of 256"),
        ("largest_graph", {"requests": 64}, "requests=64 of 128"),
    ],
)
def test_a_shape_that_ran_too_small_has_not_shown_the_peak(
    shape: str, facts: dict[str, int], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S6: the margin is only sound if warm-up ran what serving runs."""
    log = WarmupLog(LIMITS)
    log.ran(shape, **facts)
    assert not log.exercised
    assert told in log.left_out[0].reason
    assert told in caplog.text
    (name,) = facts
    log.ran(shape, **{name: 8192})
    assert [one.shape for one in log.exercised] == [shape]
    assert log.left_out == ()


def test_rows_are_judged_without_limits_too_and_by_what_a_step_can_have() -> None:
    assert vmmcache.PROMPT_LOGPROBS_ROWS == 1024
    log = WarmupLog()
    log.ran("prompt_logprobs", rows=1000)
    assert log.exercised == ()
    small = WarmupLog(EngineLimits(512, 4096))
    small.ran("prompt_logprobs", rows=512)
    assert len(small.exercised) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda log: log.ran("mixed-step"),
        lambda log: log.skipped("everything", "no time"),
        lambda log: log.skipped("encoder", ""),
        lambda log: log.ran("sampler", requests=[1, 2]),
    ],
)
def test_what_is_no_shape_or_fact_is_refused(wrong: Any) -> None:
    """A misspelt name would leave the real one missing."""
    log = WarmupLog()
    with pytest.raises(ConfigError):
        wrong(log)
    assert log.missing == tuple(WarmupShape)


# Ids of dummy work ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-3, 1 << 40)), st.integers(1, 1 << 20))
def test_wrapped_ids_have_memory_and_only_the_null_block_is_the_null_block(ids: list[int], committed: int) -> None:
    """S2; "dummy runs must clamp block ids to the committed prefix"."""
    for before, after in zip(ids, wrap_slots(ids, committed), strict=True):
        assert after < committed
        assert after == before or (before >= committed and (after > 0 or committed == 1))


def test_neighbouring_ids_stay_apart_as_far_as_there_are_slots() -> None:
    """So that dummy work touches as much memory as real work would, and not one slot over and over."""
    assert len(set(wrap_slots(list(range(100, 109)), 10))) == 9


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50), st.integers(1, 2**31 - 1))
def test_every_kind_is_wrapped_alike_and_stays_what_it_is(ids: list[int], committed: int) -> None:
    wanted = wrap_slots(ids, committed)
    assert [wrap_slots(number, committed) for number in ids] == wanted
    assert wrap_slots(tuple(ids), committed) == tuple(wanted)
    assert wrap_slots(array("i", ids), committed) == array("i", wanted)
    for kind in (np.int32, np.int64):
        wrapped = wrap_slots(np.array(ids, dtype=kind), committed)
        assert wrapped.dtype == np.dtype(kind)
        assert wrapped.tolist() == wanted


@pytest.mark.parametrize("name", ["int32", "int64"])
def test_tensors_are_wrapped_without_changing_the_one_given(name: str) -> None:
    import torch

    table = torch.tensor([[0, 1, 9], [10, 11, -1]], dtype=getattr(torch, name))
    wrapped = wrap_slots(table, 10)
    assert wrapped.dtype == table.dtype
    assert wrapped.tolist() == [[0, 1, 9], [1, 2, -1]]
    assert table.tolist() == [[0, 1, 9], [10, 11, -1]]
    assert wrap_slots(table, 1).tolist() == [[0, 0, 0], [0, 0, -1]]
    assert wrap_slots(torch.tensor(12), 10).item() == 3


@pytest.mark.parametrize(
    ("ids", "committed"), [([1.5], 4), (["1"], 4), (np.array([1.0]), 4), ([1], 0), (None, 4), (np.array([True]), 4)]
)
def test_what_is_no_id_is_refused(ids: Any, committed: int) -> None:
    with pytest.raises(ConfigError):
        wrap_slots(ids, committed)
