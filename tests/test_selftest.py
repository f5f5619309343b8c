"""U4: ``vmmcache selftest`` finds what is wrong with a device, and says so to people, programs and shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S

PLUGINS = Path(__file__).parent / "plugins"


def selftest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PLUGINS / "flawed"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "vmmcache", "selftest", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


@pytest.mark.parametrize("optimize", ["", "2"])
def test_a_promise_that_is_not_kept_is_found(optimize: str) -> None:
    """Also where the environment asks Python to leave assertions out."""
    child = selftest("forgetful", "--json", PYTHONOPTIMIZE=optimize)
    report = json.loads(child.stdout)
    assert (child.returncode, report["ok"], report["probe"]["ok"]) == (1, False, True)
    failed = {test["name"]: test["message"] for test in report["tests"] if test["outcome"] == "failed"}
    (message,) = (said for name, said in failed.items() if name.startswith("test_a_run_is_one_range"))
    assert r"assert b'a\x00\x00\x00ss' == b'a\x00\x00\x00\x00s'" in message
    assert report["failed"] == len(failed) < 10 < report["passed"]
    assert len(report["tests"]) == report["passed"] + report["failed"] + report["skipped"]


def test_people_are_told_which_and_why() -> None:
    child = selftest("forgetful", COLUMNS="100")
    assert child.returncode == 1
    assert "Traceback" not in child.stderr
    lines = child.stdout.splitlines()
    assert any(line.startswith(" a run is one range ") and " failed " in line for line in lines)
    assert any(line.startswith("test_a_run_is_one_range: ") for line in lines)
    assert " broken, 0 not asked" in lines[-1]


def test_a_device_that_takes_the_process_along_is_an_outcome() -> None:
    child = selftest("fragile", "--json")
    report = json.loads(child.stdout)
    assert (child.returncode, report["ok"]) == (1, False)
    *before, last = report["tests"]
    assert len(before) == report["passed"] + report["failed"] - 1 > 5
    assert last["outcome"] == "crashed"
    assert last["message"].startswith("the process died of SIGSEGV")
    assert "acme: granting" in last["message"]
    assert "in _grant_reading" in last["message"]
    assert "reading" in last["name"]


@pytest.mark.parametrize("module", ["vmmcache.testing.conformance", "vmmcache.testing.stateful"])
def test_a_suite_that_would_assert_nothing_is_refused(module: str) -> None:
    child = subprocess.run(
        [sys.executable, "-O", "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    assert child.returncode == 1
    assert "StateError: the " in child.stderr
    assert "without -O, and without PYTHONOPTIMIZE" in child.stderr
