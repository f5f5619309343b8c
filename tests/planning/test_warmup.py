"""Constraints of a warm-up: one that every model has, others through the plug-in door (P11)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest

from tests.planning.support import FIT, one_buffer
from vmmcache.errors import ConfigError
from vmmcache.planning import Batch, CacheLayout, EngineLimits, Request, WarmupConstraint, plan, warmup_constraints
from vmmcache.plugins import hookspecs

GRAPHS = (1, 8, 32)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, repository: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "plugins"))
    return importlib.import_module("vmmcache_deepseek")


@pytest.fixture
def records(plugin: ModuleType) -> list[WarmupConstraint]:
    """What the plug-in yields through the door that every plug-in comes through."""
    manager = pluggy.PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    return [record for results in manager.hook.vmmcache_warmup_constraints() for record in results]


def limits(**changes: Any) -> EngineLimits:
    given: dict[str, Any] = {
        "max_num_tokens": 8192,
        "max_seq_len": 1 << 20,
        "max_batch_size": 256,
        "model_type": "deepseek_v4",
        "graph_batch_sizes": GRAPHS,
    }
    return EngineLimits(**{**given, **changes})


def test_every_model_runs_a_context_step() -> None:
    assert warmup_constraints(EngineLimits(8192, 1 << 20)) == [Batch([Request(8192, 0)])]
    assert warmup_constraints(EngineLimits(8192, 4096)) == [Batch([Request(4096, 0)])]


def test_the_longest_decode_belongs_to_its_models_only(records: list[WarmupConstraint]) -> None:
    assert [record.name for record in records] == ["deepseek-longest-decode"]
    for other in ("llama", None):
        assert len(warmup_constraints(limits(model_type=other), records)) == 1


def test_it_is_one_longest_request_beside_short_ones(records: list[WarmupConstraint]) -> None:
    context, decode = warmup_constraints(limits(), records)
    assert context == Batch([Request(8192, 0)])
    assert decode == Batch([Request(1 << 20, (1 << 20) - 1), Request(1, 0, count=31)])


def test_draft_and_extra_tokens_count(records: list[WarmupConstraint]) -> None:
    decode = warmup_constraints(limits(draft_tokens=2, extra_tokens=1), records)[1]
    assert decode == Batch([Request(1 << 20, (1 << 20) - 4), Request(4, 0, count=31)])


def test_it_shrinks_to_the_largest_graph_really_captured(records: list[WarmupConstraint]) -> None:
    assert warmup_constraints(limits(graph_batch_sizes=(1, 2)), records)[1].requests[1].count == 1
    assert len(warmup_constraints(limits(graph_batch_sizes=(1,)), records)[1].requests) == 1
    assert warmup_constraints(limits(max_batch_size=4), records)[1].requests[1].count == 3


def test_it_vanishes_when_graphs_are_off(records: list[WarmupConstraint]) -> None:
    assert len(warmup_constraints(limits(graph_batch_sizes=()), records)) == 1


def test_an_explicit_ratio_is_its_opt_out_and_can_be_overruled(records: list[WarmupConstraint]) -> None:
    assert len(warmup_constraints(limits(explicit_ratio=True), records)) == 1
    assert len(warmup_constraints(limits(explicit_ratio=True, keep_with_ratio=True), records)) == 2


def test_the_long_request_may_be_fitted(records: list[WarmupConstraint]) -> None:
    constraints = warmup_constraints(limits(policy=FIT), records)
    layout = CacheLayout(32, [one_buffer(None, 65536)])
    with pytest.warns(match="reduced"):
        planned = plan(layout, 1 << 30, constraints=constraints)
    long, short = planned.resolved_constraints[1].requests
    assert long.capacity < 1 << 20
    assert short == constraints[1].requests[1]


def test_what_a_plug_in_yields_is_checked() -> None:
    with pytest.raises(ConfigError, match="WarmupConstraint"):
        warmup_constraints(limits(), [object()])  # type: ignore[list-item]  # wrong on purpose
    wrong = WarmupConstraint("acme", frozenset({"deepseek_v4"}), lambda _: [Request(8)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="acme"):
        warmup_constraints(limits(), [wrong])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_tokens", 0),
        ("max_seq_len", -1),
        ("max_batch_size", 0),
        ("draft_tokens", -1),
        ("extra_tokens", 0.5),
        ("graph_batch_sizes", (0,)),
        ("policy", "BEST"),
    ],
)
def test_wrong_limits_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        limits(**{field: value})
    assert error.value.field == field
