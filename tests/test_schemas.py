"""R4, U4: what the commands print as JSON is what the shipped schemas say, key for key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.emulator.control import Emulator

PLUGINS = Path(__file__).parent / "plugins"
NAMES = ("probe", "selftest")
PATIENCE_S = 110.0


@cache
def schema(name: str) -> dict[str, Any]:
    """The schema as a program finds it that has only installed the package."""
    text = resources.files("vmmcache").joinpath("schemas", f"{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def strict(name: str) -> Draft202012Validator:
    """The schema, with no key allowed that it does not name: ours must be documented, whatever readers may ignore.

    Errors are left as they are: they carry the numbers of their kind.
    """
    closed = deepcopy(schema(name))
    for key, part in closed["$defs"].items():
        if key != "error":
            for each in _objects(part):
                each["additionalProperties"] = False
    return Draft202012Validator(closed)


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if part.get("type") == "object" and "properties" in part:
            yield part
        for value in part.values():
            yield from _objects(value)
    elif isinstance(part, list):
        for value in part:
            yield from _objects(value)


def output(*arguments: str, status: int, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The object that a command prints."""
    child = subprocess.run(
        [sys.executable, "-m", "vmmcache", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, **(environment or {})},
    )
    assert child.returncode == status, child.stderr
    printed: dict[str, Any] = json.loads(child.stdout)
    return printed


@pytest.fixture(scope="module")
def probed() -> dict[str, Any]:
    return output("probe", "--driver", "host", status=0)


@pytest.fixture(scope="module")
def tested() -> dict[str, Any]:
    return output("selftest", "host", status=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert schema(name)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_what_both_schemas_describe_they_describe_alike() -> None:
    """Each stands alone, so that a reader needs one file."""
    first, second = (schema(name)["$defs"] for name in NAMES)
    common = first.keys() & second.keys()
    assert common == {"step", "granularity", "memory", "error"}
    assert {key: first[key] for key in common} == {key: second[key] for key in common}
    own = ("vmm", "reason", "cure", "granule", "steps")
    facts = {key: value for key, value in first["device"]["properties"].items() if key not in own}
    assert second["answer"]["properties"]["facts"]["properties"] == facts


def test_the_probe_of_the_host(probed: dict[str, Any]) -> None:
    strict("probe").validate(probed)


def test_the_selftest_of_the_host(tested: dict[str, Any]) -> None:
    strict("selftest").validate(tested)
    assert len(tested["tests"]) > 100


@pytest.mark.parametrize("device", ["nonesuch:0", "host:7"])
def test_the_selftest_of_what_cannot_be_used(device: str) -> None:
    strict("selftest").validate(output("selftest", device, status=1))


@pytest.mark.parametrize("folder", ["broken", "troubled", "stranger"])
def test_the_probe_of_strangers(folder: str) -> None:
    """Plug-ins that are broken, crash, hang, or lie."""
    path = os.pathsep.join([str(PLUGINS / folder), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "VMMCACHE_PROBE_TIMEOUT_S": "3"}
    strict("probe").validate(output("probe", status=0, environment=environment))


@pytest.mark.parametrize(
    ("profile", "status"),
    [
        ("cuda-13", 0),
        ("cuda-no-imex", 0),
        ("cuda-wsl2", 0),
        ("cuda-vgpu", 1),
        ("cuda-stub", 1),
        ("hip-10.0", 0),
        ("hip-7.14", 0),
        ("hip-7.2", 1),
        ("hip-no-device", 1),
    ],
)
def test_the_probe_of_emulated_devices(profile: str, status: int) -> None:
    emulator = Emulator("cuda" if profile.startswith("cuda") else "hip", profile)
    report = output("probe", "--driver", emulator.vendor, status=status, environment=emulator.env)
    strict("probe").validate(report)
    assert report["drivers"][0]["steps"]


@pytest.mark.parametrize("command", [("probe", "--driver", "nonesuch"), ("selftest", "no device:")])
def test_errors_are_described_by_the_same_schema(command: tuple[str, ...]) -> None:
    strict(command[0]).validate(output(*command, status=2))


def _wrong(report: dict[str, Any], *path: str | int) -> Iterator[dict[str, Any]]:
    """The report with one thing wrong each in the object at `path`: a key that lacks, and one too many."""
    part: Any = report
    for step in path:
        part = part[step]
    for key in part:
        yield _changed(report, *path, value={other: value for other, value in part.items() if other != key})
    yield _changed(report, *path, value=part | {"surplus": 1})


def _changed(report: dict[str, Any], *path: str | int, value: object) -> dict[str, Any]:
    """The report with another value at `path`."""
    box: list[Any] = [deepcopy(report)]
    part: Any = box
    for step, after in pairwise((0, *path, None)):
        if after is None:
            part[step] = value
        part = part[step]
    changed: dict[str, Any] = box[0]
    return changed


def test_what_is_not_so_in_a_probe_is_noticed(probed: dict[str, Any]) -> None:
    driver = ("drivers", 0)
    device = (*driver, "devices", 0)
    wrong = [
        report
        for path in ((), driver, device, (*driver, "library"), (*device, "memory"), (*device, "steps", 0))
        for report in _wrong(probed, *path)
    ]
    wrong += [
        _changed(probed, "schema", value=2),
        _changed(probed, *driver, "reason", value="why, although it is ok"),
        _changed(probed, *driver, "status", value="unavailable"),
        _changed(probed, *device, "vmm", value=False),
        _changed(probed, *device, "granule", value=0),
        _changed(probed, *device, "steps", 0, "ok", value=False),
        _changed(probed, *device, "steps", 0, "cure", value="a cure, although it is ok"),
    ]
    for report in wrong:
        with pytest.raises(ValidationError):
            strict("probe").validate(report)


def test_what_is_not_so_of_a_connector_is_noticed() -> None:
    report = output("probe", status=0, environment={"VMMCACHE_DISABLE_DRIVERS": "cuda,hip"})
    strict("probe").validate(report)
    place = next(number for number, entry in enumerate(report["connectors"]) if entry["name"] == "nixl")
    path = ("connectors", place)
    wrong = [*_wrong(report, *path), *_wrong(report, *path, "needs", 0)]
    wrong += [_changed(report, *path, "status", value="fine"), _changed(report, *path, "reason", value="")]
    for each in wrong:
        with pytest.raises(ValidationError):
            strict("probe").validate(each)


def test_what_is_not_so_in_a_selftest_is_noticed(tested: dict[str, Any]) -> None:
    wrong = [report for path in ((), ("probe",), ("tests", 0)) for report in _wrong(tested, *path)]
    wrong += [
        _changed(tested, "tests", 0, "outcome", value="fine"),
        _changed(tested, "tests", 0, "outcome", value="failed"),
        _changed(tested, "tests", 0, "ms", value=-1),
        _changed(tested, "probe", "ok", value=False),
        _changed(tested, "probe", "facts", value={"index": 0}),
    ]
    for report in wrong:
        with pytest.raises(ValidationError):
            strict("selftest").validate(report)


def test_a_reader_may_meet_keys_of_a_later_version(probed: dict[str, Any]) -> None:
    Draft202012Validator(schema("probe")).validate(probed | {"later": 1})
