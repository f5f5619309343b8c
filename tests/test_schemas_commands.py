"""U1: every command has ``--json``, and what it prints is what the schema of its name says, key for key."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.test_docs_commands import TINY
from tests.test_schemas import output, schema, strict
from vmmcache.cli._app import _COMMANDS

CASE: dict[str, Any] = {
    "tokens_per_block": 32,
    "layers": [{"kind": "attention", "window": None, "buffers": [{"role": "key", "bytes_per_block": 65536}]}],
    "quota": 1 << 26,
    "granule": 1 << 21,
    "constraints": [
        {"requests": [{"capacity": 8192, "history_length": 0}]},
        {
            "requests": [{"capacity": 1 << 20, "history_length": (1 << 20) - 4, "policy": "FIT_TO_QUOTA"}],
            "system_prompt_length": 64,
        },
    ],
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vmmcache", *arguments], capture_output=True, text=True, check=False, cwd="/"
    )


def errors(name: str, printed: dict[str, Any]) -> list[str]:
    return [error.message for error in strict(name).iter_errors(printed)]


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_command_has_json_and_a_schema_that_is_shipped(name: str) -> None:
    assert "--json" in run(name, "--help").stdout
    Draft202012Validator.check_schema(schema(name))
    assert schema(name)["$id"] == f"urn:vmmcache:schema:{name}:1"
    assert schema(name)["title"].startswith(f"vmmcache {name}")
    assert "Keys may be added" in schema(name)["description"]


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_wrong_use_is_one_object_on_standard_output_and_status_2(name: str) -> None:
    child = run(name, "--json", "--no-such-option")
    assert (child.returncode, child.stderr) == (2, "")
    printed = json.loads(child.stdout)
    assert printed["error"]["type"] == "UsageError"
    assert errors(name, printed) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("gemma-3-1b", "--quota", "8GiB"),
        ("gemma-3-1b", "--quota", "8GiB", "--max-len", "4096", "--concurrency", "4"),
        ("llama-3.1-8b",),
        ("llama-3.1-8b", "--max-len", "4096"),
    ],
)
def test_plans_of_models(arguments: tuple[str, ...]) -> None:
    assert errors("plan", output("plan", *arguments, status=0)) == []


@pytest.mark.parametrize("lacks", [(), ("quota",), ("constraints",)])
def test_plans_of_cases(lacks: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({key: value for key, value in CASE.items() if key not in lacks}), encoding="utf-8")
    printed = output("plan", str(file), status=0)
    assert errors("plan", printed) == []
    assert bool(printed.get("reductions")) is not bool(lacks)


def test_a_plan_that_does_not_fit_is_an_error_with_numbers() -> None:
    printed = output("plan", "llama-3.1-8b", "--quota", "1MiB", status=1)
    assert errors("plan", printed) == []
    assert printed["error"]["needed"] > printed["error"]["usable"]


def test_the_demo(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY), encoding="utf-8")
    printed = output("demo", "--device", "host", "--model", str(file), "--tokens", "2", status=0)
    assert errors("demo", printed) == []
    # One that ended early lacks later stages, and says why.
    early = {key: value for key, value in printed.items() if key not in ("wake", "descriptors", "seconds")}
    assert errors("demo", early | {"ok": False, "error": {"type": "OutOfDeviceMemory", "message": "why"}}) == []
    for key in ("checks", "driver"):
        with pytest.raises(ValidationError):
            strict("demo").validate({name: value for name, value in printed.items() if name != key})


def test_benchmarks() -> None:
    printed = output("bench", "growth", "--quick", status=0)
    assert errors("bench", printed) == []
    wrong = []
    changes: dict[str, Any]
    for changes in ({"held": "yes"}, {"figure": None}, {"surplus": 1}):
        changed = deepcopy(printed)
        changed["benchmarks"][0]["rows"][0] |= changes
        wrong.append(changed)
    for changes in ({"status": "failed"}, {"rows": []}, {"reason": "why, although it is ok"}):
        changed = deepcopy(printed)
        changed["benchmarks"][0] |= changes
        wrong.append(changed)
    for changed in wrong:
        assert errors("bench", changed), changed["benchmarks"][0]


def test_what_is_not_so_in_a_plan_is_noticed() -> None:
    printed = output("plan", "gemma-3-1b", "--quota", "8GiB", status=0)
    for key in ("groups", "min_slots", "nbytes", "capacity"):
        assert errors("plan", {name: value for name, value in printed.items() if name != key}), key
    assert errors("plan", printed | {"surplus": 1})
    assert errors("plan", printed | {"nbytes": -1})


def test_no_schema_is_there_for_what_does_not_exist() -> None:
    import vmmcache

    files = {path.name.partition(".")[0] for path in (Path(vmmcache.__file__).parent / "schemas").glob("*.json")}
    # Those that are no command's: objects that Python gives (`to_dict`).
    assert files == {*_COMMANDS, "metrics", "sizing"}
    for name in files:
        assert re.search(r"--json|to_dict\(\)", schema(name)["title"])
