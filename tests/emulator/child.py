"""Run a whole set of tests in one child process that finds an emulated library.

The vendors' bindings keep what they loaded, so tests of a driver under a profile need a process of their own; one for
each profile, not one for each test. A parent test calls `run_tests` and asserts on the `Outcome`; the tests themselves
are ordinary modules in a folder whose conftest.py has ``collect_ignore_glob = outside_only()``, so that only a child
collects them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.emulator.control import ROOT, Emulator


def outside_only() -> list[str]:
    """For ``collect_ignore_glob`` in a conftest.py: ignore everything unless this process is a child."""
    return [] if "VMMEMU_LIBRARY" in os.environ else ["test_*.py"]


@dataclass(frozen=True)
class Outcome:
    """What the tests of a child came to."""

    passed: int
    failed: int
    skipped: int
    properties: dict[str, int]
    """Sums of what tests recorded with pytest's ``record_property`` as whole numbers, such as faults injected."""
    left_behind: tuple[str, ...]
    """What the library said at exit: leaks and violations."""
    output: str

    @property
    def good(self) -> bool:
        """Something ran, all of it passed, and nothing was left behind."""
        return self.passed > 0 and self.failed == 0 and not self.left_behind

    def __str__(self) -> str:
        """The counts, and the child's output where it matters."""
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        complaints = "".join(f"\n{line}" for line in self.left_behind)
        return counts + complaints + ("" if self.good else f"\n{self.output}")


def run_tests(
    emulator: Emulator, *tests: str | Path, folder: Path, options: tuple[str, ...] = (), timeout: float = 110.0
) -> Outcome:
    """Run tests under `emulator` in one child pytest; `folder` takes its report.

    Raises
    ------
    RuntimeError
        The child did not come to a verdict: it crashed, or could not collect.
    """
    report = folder / f"{emulator.profile}-{emulator.vendor}.xml"
    child = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *options,
            *map(str, tests),
        ],
        env=emulator.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    output = child.stdout + child.stderr
    if child.returncode not in (0, 1) or not report.exists():
        raise RuntimeError(f"pytest under {emulator.profile} ended with {child.returncode}\n{output}")
    return _outcome(report, output, child.stderr)


def _outcome(report: Path, output: str, errors: str) -> Outcome:
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    bad = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
    skipped = int(suite.get("skipped", "0"))
    properties: dict[str, int] = {}
    for entry in suite.iter("property"):
        value = entry.get("value", "")
        if value.lstrip("-").isdigit():
            name = entry.get("name", "")
            properties[name] = properties.get(name, 0) + int(value)
    return Outcome(
        passed=int(suite.get("tests", "0")) - bad - skipped,
        failed=bad,
        skipped=skipped,
        properties=properties,
        left_behind=tuple(line for line in errors.splitlines() if line.startswith("vmmemu:")),
        output=output,
    )
