"""Plan cases in JSON, there and back."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest

from tests.planning.support import FIT, nine, nine_constraints, nine_layout
from vmmcache.errors import ConfigError
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Plan, PlanWarning, Request, Ssm, plan
from vmmcache.planning.case import answer, is_case, read_case
from vmmcache.units import GIB, MIB

CASE: dict[str, Any] = {
    "tokens_per_block": 32,
    "layers": [
        {
            "name": "full",
            "kind": "attention",
            "window": None,
            "sink_tokens": 0,
            "count": 6,
            "buffers": [
                {"role": "key", "bytes_per_block": 65536, "tokens_per_block": None},
                {"role": "value", "bytes_per_block": 65536},
            ],
        },
        {"kind": "attention", "window": 128, "sink_tokens": 64, "buffers": [{"role": "key", "bytes_per_block": 4096}]},
        {"kind": "ssm", "count": 2, "buffers": [{"role": "state", "bytes_per_block": 1000}]},
    ],
    "quota": 17179869184,
    "granule": 33554432,
    "max_util_for_resume": 0.97,
    "scratch_rewind": None,
    "constraints": [
        {
            "system_prompt_length": 64,
            "requests": [
                {"capacity": 8192, "history_length": 0, "policy": "FIXED", "count": 3},
                {"capacity": 1 << 20, "history_length": (1 << 20) - 4, "policy": "FIT_TO_QUOTA"},
            ],
        }
    ],
    "typical_step": None,
    "pool_ratio": None,
    "arrangement": "block-major",
}


def changed(path: str, value: object) -> dict[str, Any]:
    """CASE with one value replaced; a path such as layers.0.window."""
    case = copy.deepcopy(CASE)
    *way, last = path.split(".")
    place: Any = case
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    place[int(last) if last.isdigit() else last] = value
    return case


def planned(case: dict[str, Any]) -> Plan:
    layout, arguments = read_case(case)
    with pytest.warns(PlanWarning):
        return plan(layout, **arguments)


def test_a_case_is_read_as_it_would_be_written_in_python() -> None:
    layout, arguments = read_case(CASE)
    full = Attention([Buffer("key", 65536), Buffer("value", 65536)], name="full", count=6)
    assert layout == CacheLayout(
        32, [full, Attention([Buffer("key", 4096)], 128, 64), Ssm([Buffer("state", 1000)], count=2)]
    )
    assert arguments == {
        "quota": 16 * GIB,
        "granule": 32 * MIB,
        "max_util_for_resume": 0.97,
        "arrangement": "block-major",
        "constraints": [Batch([Request(8192, 0, count=3), Request(1 << 20, (1 << 20) - 4, FIT)], 64)],
    }


def test_the_answer_has_the_words_of_the_contract() -> None:
    content = json.loads(json.dumps(answer(planned(CASE))))
    assert content["schema"] == 1
    assert set(content["quota"]) == {"configured", "usable", "granule"}
    assert content["groups"][1]["life_cycles"] == [{"window": 128, "sink_blocks": 2, "kind": "attention"}]
    assert set(content["groups"][0]) == {"life_cycles", "slot_bytes", "min_slots", "slots", "nbytes"}
    assert content["nbytes"] == sum(group["nbytes"] for group in content["groups"]) <= content["quota"]["usable"]
    (batch,) = content["resolved_constraints"]
    assert batch["system_prompt_length"] == 64
    assert batch["requests"][0] == {"capacity": 8192, "history_length": 0, "policy": "FIXED", "count": 3}
    (reduction,) = content["reductions"]
    fitted = batch["requests"][1]
    assert reduction["capacity"] == [1 << 20, fitted["capacity"]]
    assert reduction["history_length"] == [(1 << 20) - 4, fitted["history_length"]]
    assert (reduction["batch"], reduction["request"]) == (0, 1)
    assert content["binding"]["group"] == 0


def test_without_a_quota_only_the_demand_is_answered() -> None:
    layout, arguments = read_case(changed("quota", None))
    content = answer(plan(layout, **arguments))
    assert len(content["demand"]) == 1
    assert content["min_slots"] == [group["min_slots"] for group in content["groups"]]
    assert not {"quota", "nbytes", "reductions"} & set(content)
    assert "slots" not in content["groups"][0]


def test_the_nine_life_cycles_as_a_case_are_those_of_python() -> None:
    layers = [
        {
            "name": entry["name"],
            "kind": entry["kind"],
            "window": entry["window"],
            "sink_tokens": entry["sink_tokens"],
            "count": entry["num_layers"],
            "buffers": [
                {"role": role, "bytes_per_block": nbytes} for role, nbytes in entry["buffers_bytes_per_block"].items()
            ],
        }
        for entry in nine()["variants"]["attn9"]
    ]
    case = {**CASE, "layers": layers}
    case["constraints"] = [
        {"requests": [{"capacity": 8192}]},
        {"requests": [CASE["constraints"][0]["requests"][1], {"capacity": 4, "count": 31}]},
    ]
    with pytest.warns(PlanWarning):
        expected = plan(nine_layout(), 16 * GIB, 32 * MIB, constraints=nine_constraints(32))
    from_case = planned(case)
    assert [group[1:] for group in from_case.groups] == [group[1:] for group in expected.groups]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("tokens_per_block", None, "tokens_per_block"),
        ("tokens_per_block", 0, "tokens_per_block"),
        ("layers", [], "layers"),
        ("layers", {}, "layers"),
        ("layers.0", 3, "layers[0]"),
        ("layers.0.kind", "mlp", "layers[0].kind"),
        ("layers.0.window", 0, "layers[0].window"),
        ("layers.1.sink_tokens", -1, "layers[1].sink_tokens"),
        ("layers.0.count", 0, "layers[0].count"),
        ("layers.0.buffers", None, "layers[0].buffers"),
        ("layers.0.buffers", [], "layers[0].buffers"),
        ("layers.0.buffers.0.bytes_per_block", 0, "layers[0].buffers[0].bytes_per_block"),
        ("layers.0.buffers.0.bytes_per_block", None, "layers[0].buffers[0].bytes_per_block"),
        ("layers.0.buffers.1.role", "key", "layers[0].buffers"),
        ("layers.0.buffers.0.tokens_per_block", 5, "tokens_per_block"),
        ("layers.2.window", 8, "layers[2].window"),
        ("layers.2.kind", "SSM", "layers[2].kind"),
        ("layers.0.windows", 8, "layers[0].windows"),
        ("quota", math.nan, "quota"),
        ("quota", "16GiB", "quota"),
        ("granule", -1, "granule"),
        ("max_util_for_resume", -0.5, "max_util_for_resume"),
        ("max_util_for_resume", math.nan, "max_util_for_resume"),
        ("pool_ratio", [0.5, 0.5], "pool_ratio"),
        ("arrangement", "rows", "arrangement"),
        ("sustained", 1, "sustained"),
        ("allow_growth", True, "allow_growth"),
        ("constraints", {}, "constraints"),
        ("constraints.0", [], "constraints[0]"),
        ("constraints.0.requests", None, "constraints[0].requests"),
        ("constraints.0.system_prompt_length", -1, "constraints[0].system_prompt_length"),
        ("constraints.0.requests.0.capacity", -1, "constraints[0].requests[0].capacity"),
        ("constraints.0.requests.0.history_length", 8193, "constraints[0].requests[0].history_length"),
        ("constraints.0.requests.0.policy", "BEST", "constraints[0].requests[0].policy"),
        ("constraints.0.requests.0.policy", ["FIXED", "FIT_TO_QUOTA"], "constraints[0].requests[0].policy"),
        ("constraints.0.requests.0.length", 5, "constraints[0].requests[0].length"),
        ("typical_step", [], "typical_step"),
        ("typical_step", {"requests": [{"capacity": 1.5}]}, "typical_step.requests[0].capacity"),
        ("qouta", 5, "qouta"),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(path: str, value: object, field: str) -> None:
    def read_and_plan() -> None:
        layout, arguments = read_case(changed(path, value))
        plan(layout, **arguments)

    with pytest.raises(ConfigError) as error:
        read_and_plan()
    assert error.value.field == field


def test_remarks_are_left_alone() -> None:
    remarked = changed("layers.0.comment", "six of them")
    remarked |= {"about": "an example", "_source": "by hand"}
    assert read_case(remarked) == read_case(CASE)


def test_cases_and_configs_are_told_apart() -> None:
    assert is_case(CASE)
    assert is_case({"layers": []})
    assert not is_case({"model_type": "llama", "num_hidden_layers": 32})


def test_plans_and_what_they_are_made_of_are_values() -> None:
    layout, arguments = read_case(CASE)
    one, other = planned(CASE), planned(CASE)
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    for value in (layout, layout.layers[0], arguments["constraints"][0], arguments["constraints"][0].requests[0]):
        assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(AttributeError):
        layout.tokens_per_block = 8  # type: ignore[misc]  # wrong on purpose
    with pytest.raises(AttributeError):
        layout.something = 8  # type: ignore[attr-defined]  # wrong on purpose
    assert eval(repr(layout)) == layout
