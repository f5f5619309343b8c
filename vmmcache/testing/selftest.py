"""The suite in a process of its own: ``python -m vmmcache.testing.selftest DEVICE``, one JSON object a line.

A driver that crashes takes only this process along, and the line before says in which test.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final, TextIO

import pytest

__all__ = ["DEVICE", "main"]

DEVICE: Final = "VMMCACHE_SELFTEST_DEVICE"
"""By which variable the device comes to the suite."""
_SUITE: Final = Path(__file__).with_name("on_device.py")


class _Reporter:
    """Says what begins and how it ended."""

    def __init__(self, answer: TextIO) -> None:
        self._answer = answer

    def pytest_configure(self) -> None:
        # Before anybody imports it: what is attached to an issue has to show what was compared.
        pytest.register_assert_rewrite("vmmcache.testing.conformance")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._say(event="collected", tests=len(session.items))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._say(event="start", name=_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The call decides, unless setting up or tearing down already said no.
        if report.when == "call" or not report.passed:
            outcome = "error" if report.failed and report.when != "call" else report.outcome
            said = report.longreprtext
            if report.skipped and isinstance(report.longrepr, tuple):
                said = str(report.longrepr[2]).removeprefix("Skipped: ")
            ms = round(report.duration * 1000, 3)
            self._say(event="end", name=_name(report.nodeid), outcome=outcome, ms=ms, message=said or None)

    def _say(self, **line: Any) -> None:
        print(json.dumps(line), file=self._answer, flush=True)


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


def main(device: str) -> int:
    """Run the suite on `device`; pytest's exit status."""
    os.environ[DEVICE] = device
    # Standard output is ours alone: pytest, and the vendor's library, write to standard error.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # No settings, plug-ins or caches of whatever folder the command is run in. Nothing is captured: what a library says
    # before it crashes would be lost.
    options = ["-q", "-s", "--no-header", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(_SUITE.parent)]
    with answer:
        return int(pytest.main([*options, str(_SUITE)], plugins=[_Reporter(answer)]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
