"""The figures of README.md are those of the record beside them, and say how they came about (B6, U7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs.generate_figures import CHOSEN, RECORD, rewritten, section


@pytest.fixture
def report() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def test_the_readme_has_the_figures_of_the_record(repository: Path, report: dict[str, Any]) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert rewritten(readme, report) == readme, "run python docs/generate_figures.py benchmarks/records/bench.json"


def test_a_figure_is_the_largest_case_with_what_it_is_compared_with_and_its_command(report: dict[str, Any]) -> None:
    (planner,) = (benchmark for benchmark in report["benchmarks"] if benchmark["name"] == "planner")
    case = {"name": "fit and split, batch 1024", "against": "every request at every probe", "unit": "ms"}
    planner["rows"] = [row for row in planner["rows"] if row["name"] != case["name"]]
    planner["rows"].append(planner["rows"][0] | case | {"figure": 0.28764, "against_figure": 1234.5})
    (line,) = (line for line in section(report).splitlines() if line.startswith("| fitting"))
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    assert cells == ["0.288 ms", "1,234 ms, every request at every probe", "`vmmcache bench planner`"]
    assert len([line for line in section(report).splitlines() if line.startswith("| ")]) == len(CHOSEN) + 1


@pytest.mark.parametrize(
    ("load", "quick", "said"),
    [(0.1, False, "start: idle."), (3.0, False, "*not* idle"), (0.1, True, "figures are rough")],
)
def test_how_the_figures_came_about_is_said(report: dict[str, Any], load: float, quick: bool, said: str) -> None:
    report["environment"]["load"], report["quick"] = load, quick
    text = " ".join(section(report).split())
    assert said in text
    assert ("not* idle" in text, "are rough" in text) == (load > 1, quick)


def test_targets_that_were_missed_are_said(report: dict[str, Any]) -> None:
    for benchmark in report["benchmarks"]:
        for row in benchmark["rows"]:
            row["held"] = None
    rows = [report["benchmarks"][0]["rows"][0] | {"held": True}]
    report["benchmarks"].append({"name": "mine", "rows": rows})
    assert "All 1 targets" in section(report)
    rows.append(rows[0] | {"name": "vmmcache probe", "held": False, "judged": 0.4123, "target": "<= 0.3 s"})
    said = "Of 2 targets of the benchmarks 1 were missed: `vmmcache probe` (0.412, and should be <= 0.3 s)."
    assert said in " ".join(section(report).split())
    rows += rows[1:] * 10
    assert "Of 12 targets of the benchmarks 11 were missed: 11 of `mine`." in " ".join(section(report).split())


def test_a_record_without_a_row_that_is_shown_is_refused(report: dict[str, Any]) -> None:
    report["benchmarks"] = [one for one in report["benchmarks"] if one["name"] != "slots"]
    with pytest.raises(SystemExit, match="in slots"):
        section(report)
