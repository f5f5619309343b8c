"""What others ask: the probe, the conformance suite, and the tests marked ``gpu``; each in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, Final

from benchmarks.on_device.record import Context, NotRun, check
from benchmarks.on_device.with_torch import torch_for
from vmmcache.probing import probe

__all__ = ["gpu_tests", "probed", "selftest"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MARK: Final = "pytest.mark.gpu"


def probed(context: Context, results: dict[str, Any]) -> None:
    """RDMA flag, handle types, dma-buf, granularity and memory, as reported."""
    report = probe(context.device)
    results.update(report.to_dict())
    check(report.ok, f"{report.reason}. {report.cure}")


def selftest(context: Context, results: dict[str, Any]) -> None:
    """The shipped conformance suite."""
    child = subprocess.run(
        [sys.executable, "-P", "-m", "vmmcache.testing.selftest", context.device],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    events = [json.loads(line) for line in child.stdout.splitlines()]
    ended = [event for event in events if event["event"] == "end"]
    outcomes = [event["outcome"] for event in ended]
    results["outcomes"] = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    results["tests"] = [
        {"name": event["name"], "outcome": event["outcome"], "ms": event["ms"], "message": event["message"]}
        for event in ended
    ]
    started = [event["name"] for event in events if event["event"] == "start"]
    if started and started[-1] not in {event["name"] for event in ended}:
        results["died_in"] = started[-1]
    if child.returncode:
        results["messages"] = child.stderr.splitlines()[-40:]
    check(child.returncode == 0 and "passed" in outcomes, f"the suite ended with status {child.returncode}")
    check(set(outcomes) <= {"passed", "skipped"}, f"outcomes {results['outcomes']}")


def gpu_tests(context: Context, results: dict[str, Any]) -> None:
    """T3 and T10: views, and graphs that replay across growth, release and restore."""
    torch_for(context)
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Not by pyproject.toml: it asks for plug-ins of pytest that only a development environment has.
        child = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-c", os.devnull, "--rootdir", str(ROOT)),
                *("--import-mode=importlib", "-p", "no:cacheprovider", "-o", "markers=gpu: needs a GPU"),
                *("-o", f"pythonpath={shlex.join([str(ROOT), str(ROOT / 'examples')])}"),
                *(f"--junitxml={report}", *files),
            ],
            env={**os.environ, "VMMCACHE_GPU": context.device},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode:
            results["messages"] = (child.stdout + child.stderr).splitlines()[-40:]
        check(report.exists(), f"pytest ended with status {child.returncode}")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    results["tests"] = [_result(case) for case in cases]
    outcomes = [test["outcome"] for test in results["tests"]]
    results["outcomes"] = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    check(set(outcomes) <= {"passed", "skipped"} and child.returncode == 0, f"outcomes {results['outcomes']}")
    if "passed" not in outcomes:
        raise NotRun(str(next((test["message"] for test in results["tests"]), "there are no tests")))


def _result(case: ElementTree.Element) -> dict[str, Any]:
    """Name, outcome, time, why not, and what the test recorded."""
    outcome, message = "passed", None
    for tag in "failure", "error", "skipped":
        if (found := case.find(tag)) is not None:
            outcome = {"failure": "failed"}.get(tag, tag)
            message = found.get("message") if tag == "skipped" else (found.text or found.get("message"))
    recorded = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
    return {
        "name": case.get("name"),
        "outcome": outcome,
        "ms": round(float(case.get("time", "0")) * 1000, 3),
        "message": message,
        "recorded": recorded,
    }
