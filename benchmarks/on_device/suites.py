"""What others ask: the probe, the conformance suite, and the tests marked ``gpu``; each in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, Final

from benchmarks.on_device.children import ROOT, run
from benchmarks.on_device.record import Context, NotRun, check
from benchmarks.on_device.with_torch import torch_for
from vmmcache.probing import probe

__all__ = ["gpu_tests", "probed", "selftest"]

PYTEST: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Whatever else is installed there has no say in what a test does."""
MARK: Final = "pytest.mark.gpu"


def probed(context: Context, results: dict[str, Any]) -> None:
    """RDMA flag, handle types, dma-buf, granularity and memory, as reported."""
    report = probe(context.device)
    results.update(report.to_dict())
    check(report.ok, f"{report.reason}. {report.cure}")


def selftest(context: Context, results: dict[str, Any]) -> None:
    """The shipped conformance suite."""
    child = run([sys.executable, "-P", "-m", "vmmcache.testing.selftest", context.device], context.left, PYTEST)
    events = [json.loads(line) for line in child.stdout.splitlines(keepends=True) if line.endswith("}\n")]
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
    if child.trouble is not None:
        results["messages"] = child.stderr.splitlines()[-60:]
    check("passed" in outcomes, f"the suite {child.trouble or 'said nothing'}")
    check(set(outcomes) <= {"passed", "skipped"}, f"outcomes {results['outcomes']}")
    check(child.trouble is None, f"the suite {child.trouble}")


def gpu_tests(context: Context, results: dict[str, Any]) -> None:
    """T3 and T10: views, and graphs that replay across growth, release and restore."""
    torch_for(context)
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Not by pyproject.toml: it asks for plug-ins of pytest that only a development environment has.
        child = run(
            [
                *(sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-c", os.devnull, "--rootdir", str(ROOT)),
                *("--import-mode=importlib", "-p", "no:cacheprovider", "-o", "markers=gpu: needs a GPU"),
                *("-o", f"pythonpath={shlex.join([str(ROOT), str(ROOT / 'examples')])}"),
                *("-o", f"faulthandler_timeout={context.left / 2:.0f}"),
                *(f"--junitxml={report}", *files),
            ],
            context.left,
            {**PYTEST, "VMMCACHE_GPU": context.device},
        )
        if child.trouble is not None:
            results["messages"] = child.messages
        check(report.exists(), f"pytest {child.trouble}")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    results["tests"] = [_result(case) for case in cases]
    outcomes = [test["outcome"] for test in results["tests"]]
    results["outcomes"] = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    check(set(outcomes) <= {"passed", "skipped"}, f"outcomes {results['outcomes']}")
    check(child.trouble is None, f"pytest {child.trouble}")
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
