"""`vmmcache plan`: for people, for programs, as a picture, and its exit statuses (U1, U2)."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.planning.support import nine
from tests.planning.test_case import CASE, changed
from tests.planning.test_models import LLAMA, MAMBA2, QWEN_NEXT
from vmmcache import models
from vmmcache.cli import main
from vmmcache.units import GIB, MIB


class Output(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def vmmcache(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("COLUMNS", "160")

    def call(content: object, *options: str) -> Output:
        """Run the command on a packaged model's name, a path, or a JSON value that is written to a file first."""
        if not isinstance(content, str | Path):
            path = tmp_path / "input.json"
            path.write_text(json.dumps(content))
            content = path
        with pytest.raises(SystemExit) as left:
            main(["plan", str(content), *options])
        assert isinstance(left.value.code, int)
        return Output(left.value.code, *capsys.readouterr())

    return call


@pytest.mark.parametrize("name", models.names())
def test_every_packaged_model_is_planned_for_people_and_for_programs(vmmcache: Any, name: str) -> None:
    shown = vmmcache(name, "--quota", "60GiB")
    assert (shown.status, shown.err) == (0, "")
    for words in (
        name,
        "full attention",
        "60 GiB of 60 GiB",
        "longest single request",
        "one more GiB",
        "gives out first",
    ):
        assert words in shown.out
    report = vmmcache(name, "--quota", "60GiB", "--json").json
    assert report["schema"] == 1
    assert report["quota"] == {"configured": 60 * GIB, "usable": 60 * GIB, "granule": 32 * MIB}
    assert sum(group["nbytes"] for group in report["groups"]) == report["nbytes"] <= 60 * GIB
    assert report["one_more_gib"]["longest_in_memory"] > report["capacity"]["longest_in_memory"]


def test_requests_of_a_length_are_counted_and_declared_ones_are_floors(vmmcache: Any) -> None:
    """8192 tokens of 128 KiB: a GiB each, and 0.97 of the slots may be taken."""
    options = ("--quota", "60GiB", "--max-len", "8192")
    report = vmmcache("llama-3.1-8b", *options, "--json").json
    assert report["capacity"]["requests"] == 58
    assert report["capacity"]["longest_in_memory"] == 60 * 8192
    assert report["capacity"]["bytes_per_token"] == 128 * 1024
    declared = vmmcache("llama-3.1-8b", *options, "--concurrency", "58", "--json").json
    assert declared["groups"][0]["min_slots"] == -(-58 * 512 * 100 // 97)
    refused = vmmcache("llama-3.1-8b", *options, "--concurrency", "59", "--json")
    assert refused.status == 1
    error = refused.json["error"]
    assert (error["type"], error["cause"], error["configured"]) == ("QuotaError", "fixed", 60 * GIB)
    assert error["needed"] > error["usable"] == 60 * GIB
    assert refused.json["schema"] == 1


def test_ranks_types_and_blocks_are_options(vmmcache: Any) -> None:
    def slot(*options: str) -> int:
        size: int = vmmcache(LLAMA, "--quota", "8GiB", "--json", *options).json["groups"][0]["slot_bytes"][0]
        return size

    whole = slot()
    assert slot("--tp", "2") == whole // 2
    assert slot("--pp", "4") == whole // 4
    assert slot("--kv-dtype", "fp8") == whole // 2
    assert slot("--block-size", "32") == 2 * whole
    assert slot("--tp", "32", "--dcp", "4") == whole // 8
    shown = vmmcache(LLAMA, "--quota", "8GiB", "--tp", "2", "--pp", "3")
    assert "tp 2, pp 3, stage 0" in shown.out
    assert vmmcache(LLAMA, "--tp", "3", "--json").json["error"]["field"] == "tp"


def test_states_are_planned_beside_attention(vmmcache: Any) -> None:
    shown = vmmcache(QWEN_NEXT, "--quota", "40GiB", "--max-len", "32768")
    assert "states" in shown.out
    assert "what gives out first: pool group" in shown.out
    alone = vmmcache(MAMBA2, "--quota", "4GiB", "--json").json
    assert alone["capacity"]["longest_in_memory"] == 2**63 - 1
    assert "longest single request" not in vmmcache(MAMBA2, "--quota", "4GiB").out


def test_without_a_quota_the_need_is_said(vmmcache: Any) -> None:
    shown = vmmcache("gemma-3-1b", "--max-len", "8192", "--concurrency", "4")
    assert shown.status == 0
    assert "Floors take" in shown.out
    assert "constraint 0 needs" in shown.out
    # 32 blocks in the windowed layers, 512 in the others.
    assert "a request of 8,192 tokens takes 43 MiB" in shown.out
    report = vmmcache("gemma-3-1b", "--max-len", "8192", "--concurrency", "4", "--json").json
    assert report["demand"] == [[4 * 32, 4 * 512]]
    assert "quota" not in report
    assert report["request"] == {"length": 8192, "nbytes": 32 * 360448 + 512 * 65536}


def test_a_case_is_answered_in_the_words_of_the_contract(vmmcache: Any) -> None:
    answered = vmmcache(CASE, "--json")
    assert answered.status == 0
    assert answered.err.startswith("note: constraints[0].requests[1] reduced")
    report = answered.json
    assert report["reductions"][0]["batch"] == 0
    assert report["resolved_constraints"][0]["requests"][1]["policy"] == "FIT_TO_QUOTA"
    shown = vmmcache(CASE)
    assert "reduced constraint 0, request 1: 1,048,576 ->" in shown.out
    assert "binds pool group 0 (full attention), for constraint 0" in shown.out


def test_quota_and_granule_of_a_case_can_be_set_from_outside(vmmcache: Any) -> None:
    report = vmmcache(CASE, "--quota", "64GiB", "--granule", "2MiB", "--json").json
    assert report["quota"] == {"configured": 64 * GIB, "usable": 64 * GIB, "granule": 2 * MIB}
    without = changed("granule", None)
    assert vmmcache(without, "--json").json["quota"]["granule"] == 32 * MIB


def test_the_nine_life_cycles_through_the_command(vmmcache: Any) -> None:
    layers = [
        {
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
    decode = [CASE["constraints"][0]["requests"][1], {"capacity": 4, "count": 1023}]
    case = {**CASE, "layers": layers, "constraints": [{"requests": [{"capacity": 8192}]}, {"requests": decode}]}
    report = vmmcache(case, "--json").json
    expected = nine()["expected"]["by_batch_size"]["1024"]
    assert report["resolved_constraints"][1]["requests"][0]["capacity"] == expected["fitted_capacity"]
    assert [group["min_slots"] for group in report["groups"]] == expected["min_slots"]
    assert [group["slots"] for group in report["groups"]] == expected["slot_counts"]


@pytest.mark.parametrize(
    ("content", "options", "field"),
    [
        ({"layers": []}, (), "tokens_per_block"),
        (changed("layers.0.window", 0), (), "layers[0].window"),
        (changed("quota", -1), (), "quota"),
        (changed("quota", math.nan), (), "quota"),
        (changed("max_util_for_resume", math.inf), (), "max_util_for_resume"),
        (CASE, ("--tp", "2"), "--tp"),
        (CASE, ("--max-len", "2"), "--max-len"),
        ({"model_type": "bert"}, (), "model_type"),
        ({"hidden_size": 8}, (), "model_type"),
        ({**LLAMA, "num_hidden_layers": None}, (), "num_hidden_layers"),
        ({**LLAMA, "max_position_embeddings": None}, (), "--max-len"),
        (LLAMA, ("--quota", "many"), "--quota"),
        (LLAMA, ("--quota", "0"), "quota"),
        (LLAMA, ("--quota", "8GiB", "--granule", "1.5.2"), "--granule"),
        (LLAMA, ("--svg", "plan.svg"), "--svg"),
        (LLAMA, ("--quota", "8GiB", "--svg", "/no/such/folder/plan.svg"), "--svg"),
        (LLAMA, ("--kv-dtype", "int3"), "kv_dtype"),
        ([1, 2], (), "model"),
        ("no-such-model", (), "model"),
    ],
)
def test_wrong_use_is_status_2_and_names_the_field(
    vmmcache: Any, content: object, options: tuple[str, ...], field: str
) -> None:
    refused = vmmcache(content, *options, "--json")
    assert refused.status == 2
    assert refused.json["error"]["type"] == "ConfigError"
    assert refused.json["error"]["field"] == field
    shown = vmmcache(content, *options)
    assert shown.status == 2
    assert shown.out == ""
    assert field in shown.err


def test_a_file_that_is_not_json_is_wrong_use(vmmcache: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{broken")
    refused = vmmcache(tmp_path, "--json")
    assert refused.status == 2
    assert "not a JSON file" in refused.json["error"]["message"]


@pytest.mark.parametrize("options", [("--tp", "0"), ("--max-len", "many"), ("--arrangement", "rows"), ("--unknown",)])
def test_options_that_cannot_be_read_are_wrong_use(vmmcache: Any, options: tuple[str, ...]) -> None:
    refused = vmmcache("llama-3.1-8b", *options, "--json")
    assert refused.status == 2
    assert refused.json["error"]["type"] == "UsageError"


def test_the_picture_has_a_bar_for_each_group_and_a_curve_for_each_question(vmmcache: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    assert vmmcache("gemma-3-1b", "--quota", "60GiB", "--svg", str(path)).status == 0
    root = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text or "" for text in root.iter(f"{space}text")]
    assert "gemma-3-1b in 60 GiB" in texts
    assert {"window 512", "full attention", "4 layers", "22 layers"} <= set(texts)
    curves = list(root.iter(f"{space}polyline"))
    assert len(curves) == 2
    for curve in curves:
        points = [tuple(map(float, point.split(","))) for point in curve.attrib["points"].split()]
        assert len(points) > 30
        # A larger quota never buys less: to the right, never down (and down is larger in SVG).
        assert all(x1 <= x2 and y1 >= y2 for (x1, y1), (x2, y2) in pairwise(points))


def test_the_picture_of_a_case_starts_where_it_fits(vmmcache: Any, tmp_path: Path) -> None:
    path = tmp_path / "case.svg"
    assert vmmcache(CASE, "--svg", str(path)).status == 0
    curves = list(ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(curves) == 1
