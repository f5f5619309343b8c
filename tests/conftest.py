"""What every test shares: settings of Hypothesis, a clean environment, and the project's own sources."""

from __future__ import annotations

import ast
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# No test judges a clock, so neither does Hypothesis. CI draws the same examples each time; a desk looks for new ones.
settings.register_profile(
    "vmmcache",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.load_profile("vmmcache")


COUNTED = "counted: "


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests counted (``record_property("counted: ...", n)``), added up: seen to fall before a floor is hit."""
    counted: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name.startswith(COUNTED):
                counted[name.removeprefix(COUNTED)] += int(str(value))
    for name, number in counted.items():
        terminalreporter.write_line(f"{name}: {number:,}")


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop every VMMCACHE_* variable, so that a test sees defaults wherever it does not set one itself."""
    for name in [name for name in os.environ if name.startswith("VMMCACHE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> dict[str, ast.Module]:
    """Every module of vmmcache/ and drivers/, parsed. A package's own file is called ``package.__init__``."""
    trees = {}
    for base, pattern in (ROOT, "vmmcache/**/*.py"), (ROOT / "drivers", "**/*.py"):
        for path in sorted(base.glob(pattern)):
            name = ".".join(path.relative_to(base).with_suffix("").parts)
            trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees
