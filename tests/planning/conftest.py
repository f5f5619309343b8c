"""Says at the end how many of the published cases were run."""

from __future__ import annotations

import pytest

PUBLISHED = ("test_published_cases.py::", "test_nine_life_cycles.py::test_fitted_plan", "test_models_published.py::")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = {
        outcome: sum(
            any(name in report.nodeid for name in PUBLISHED) for report in terminalreporter.getreports(outcome)
        )
        for outcome in ("passed", "failed")
    }
    if sum(counts.values()):
        told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        terminalreporter.write_line(f"published figures of the planner: {told}")
