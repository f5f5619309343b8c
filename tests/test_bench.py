"""U1, B0: ``vmmcache bench``: what it runs, what becomes of a benchmark, and what its exit status says.

Times are nobody's business here: what is tested is which rounds are made, and what is made of figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vmmcache import ConfigError
from vmmcache.benchmarks import catalog, harness
from vmmcache.benchmarks.harness import Row, best_in_turns, mode
from vmmcache.benchmarks.planner import differences

HOLDS = """
from vmmcache.benchmarks.harness import Row, best_in_turns
TITLE = "Two [bold] things"
def measure():
    print("noise of a library")
    best = best_in_turns({"a": lambda: 2.0, "b": lambda: 4.0})
    return [Row("x [red]", best["a"], "ms", "b", best["b"], 0.5, "<= 1 times", True), Row("shown", 1.0, "s")]
"""
MISSES = HOLDS.replace("0.5", "1.5").replace("True", "False")
RAISES = '"""First sentence.\n\nMore."""\ndef measure():\n    raise SystemExit("the result is wrong")\n'
DIES = "import os\ndef measure():\n    os.kill(os.getpid(), 9)\n"
LACKS = 'NEEDS = ("no_such_package", "json")\ndef measure(): ...\n'


def bench(*arguments: str, columns: str = "200") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vmmcache", "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": columns},
    )


def report(*arguments: str, status: int) -> dict[str, Any]:
    child = bench(*arguments, "--json")
    assert child.returncode == status, child.stderr
    printed: dict[str, Any] = json.loads(child.stdout)
    return printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in (("good", HOLDS), ("bad", MISSES), ("wrong", RAISES), ("dying", DIES), ("poor", LACKS)):
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    (tmp_path / "no_benchmark.py").write_text("def measured(): ...\nclass A:\n    def measure(self): ...\n")
    return tmp_path


# What is measured -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quick", "rounds"), [(False, 9), (True, 3)])
def test_cases_take_turns_and_the_order_turns_round(quick: bool, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(mode, "quick", quick)
    monkeypatch.setattr(mode, "progress", lambda done, of: told.append((done, of)))

    def case(name: str) -> float:
        seen.append(name)
        return float(len(seen))

    best = best_in_turns({"a": lambda: case("a"), "b": lambda: case("b")})
    assert seen == [name for number in range(rounds) for name in ("ab" if number % 2 == 0 else "ba")]
    assert best == {"a": 1.0, "b": 2.0}
    assert told == [(done, 2 * rounds) for done in range(2 * rounds)]


def test_a_row_knows_its_ratio() -> None:
    assert Row("x", 3.0, "s", "y", 2.0).ratio == 1.5
    assert Row("x", 3.0, "s").ratio is None
    assert Row("x", 3.0, "s", "y", 0.0).to_dict()["ratio"] is None


def test_the_garbage_collector_is_held_back_and_let_go() -> None:
    import gc

    states: list[bool] = []
    harness.seconds(lambda: states.append(gc.isenabled()))
    with pytest.raises(ZeroDivisionError):
        harness.seconds(lambda: 1 // 0)
    assert (states, gc.isenabled()) == ([False], True)


@pytest.mark.filterwarnings("ignore::vmmcache.planning.PlanWarning")
def test_the_planner_is_right_before_it_is_timed() -> None:
    assert differences() == []  # B1: the expected results, and those of a straightforward evaluation


# Which there are ------------------------------------------------------------------------------------------------------


def test_what_is_shipped_is_found_without_being_imported() -> None:
    script = "import sys; from vmmcache.benchmarks.catalog import shipped; print(*shipped(), 'torch' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"bandwidth", "growth", "host", "planner", "startup"} <= set(child.stdout.split())
    assert {"catalog", "harness", "True"}.isdisjoint(child.stdout.split())


def test_a_folder_adds_benchmarks_and_may_stand_in_for_shipped_ones(folder: Path) -> None:
    (folder / "planner.py").write_text(HOLDS, encoding="utf-8")
    found = catalog.find([folder])
    assert set(found) == {*catalog.shipped(), "good", "bad", "wrong", "dying", "poor"}
    assert found["planner"].path == folder / "planner.py"
    assert (found["good"].title, found["wrong"].title) == ("Two [bold] things", "First sentence")
    assert (found["dying"].title, found["poor"].missing()) == ("dying", ("no_such_package",))


def test_benchmarks_of_a_checkout_are_found(repository: Path) -> None:
    assert "growth" in catalog.find([repository / "benchmarks"])
    assert not {"harness", "hardware"} & set(catalog.find([repository / "benchmarks"]))


def test_names_are_chosen_once_and_wrong_ones_refused(folder: Path) -> None:
    there = catalog.find([folder])
    assert [each.name for each in catalog.chosen(["good", "bad", "good"], there)] == ["good", "bad"]
    assert catalog.chosen([], there) == catalog.chosen(["good", "all"], there) == list(there.values())
    with pytest.raises(ConfigError, match="no such benchmark; there are bad, bandwidth"):
        catalog.chosen(["gud"], there)


@pytest.mark.parametrize("path", ["", "nowhere"])
def test_a_folder_without_benchmarks_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a folder"):
        catalog.find([tmp_path / path])


# What comes of it -----------------------------------------------------------------------------------------------------


def test_figures_are_a_table_and_the_verdict_stands_last(folder: Path) -> None:
    child = bench("good", "--with", str(folder))
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("Two [bold] things")
    lines = child.stdout.splitlines()
    (row,) = (line.split() for line in lines if line.startswith("x [red]"))
    assert row == ["x", "[red]", "2", "ms", "b:", "4", "ms", "0.500", "<=", "1", "times", "0.5", "holds"]
    assert (lines[-1], child.stderr) == ("every target holds", "")
    assert "\x1b" not in child.stdout


def test_a_missed_target_is_status_1(folder: Path) -> None:
    child = bench("good", "bad", "--with", str(folder))
    assert child.returncode == 1
    assert "MISSED" in child.stdout
    assert child.stdout.splitlines()[-1] == "missed a target: bad"


def test_what_ends_in_another_way_is_shown_and_the_rest_still_runs(folder: Path) -> None:
    found = report("wrong", "dying", "poor", "good", "--with", str(folder), "--quick", status=1)
    said = {entry["name"]: (entry["status"], entry["reason"]) for entry in found["benchmarks"]}
    assert said["good"] == ("ok", None)
    assert said["wrong"] == ("failed", "its process ended with status 1\nthe result is wrong")
    assert said["dying"] == ("failed", "its process died of SIGKILL")
    assert said["poor"] == ("unavailable", "no_such_package is not installed")
    assert (found["ok"], found["quick"], found["rounds"]) == (False, True, 3)


def test_what_was_named_and_is_not_here_is_status_1_and_of_all_it_is_none(folder: Path) -> None:
    for name in ("bad", "wrong", "dying"):
        (folder / f"{name}.py").unlink()
    assert report("poor", "--with", str(folder), status=1)["ok"] is False
    assert report("good", "poor", "--with", str(folder), status=1)["ok"] is False
    # Stand-ins for the shipped ones, which take their time.
    for name in catalog.shipped():
        (folder / f"{name}.py").write_text(HOLDS, encoding="utf-8")
    found = report("--with", str(folder), status=0)
    assert Counter(entry["status"] for entry in found["benchmarks"]) == {
        "ok": len(catalog.shipped()) + 1,
        "unavailable": 1,
    }


def test_quick_reaches_the_process_that_measures(folder: Path) -> None:
    code = HOLDS.replace(
        "return [", "from vmmcache.benchmarks.harness import mode\n    return [Row('q', mode.quick, ''), "
    )
    (folder / "good.py").write_text(code, encoding="utf-8")
    for arguments, expected in ((("--quick",), 1), ((), 0)):
        found = report("good", "--with", str(folder), *arguments, status=0)
        assert found["benchmarks"][0]["rows"][0]["figure"] == expected


def test_the_record_is_the_object_that_json_prints(folder: Path) -> None:
    file = folder / "new" / "record.json"
    child = bench("good", "--with", str(folder), "--record", str(file), "--json")
    assert child.returncode == 0, child.stderr
    assert json.loads(file.read_text(encoding="utf-8")) == json.loads(child.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gud",), "no such benchmark"),
        (("--with", "/nowhere"), "must be a folder"),
        (("growth", "--quick", "--record", "/dev/null/x"), "cannot be written"),
    ],
)
def test_wrong_use_is_status_2(arguments: tuple[str, ...], said: str) -> None:
    child = bench(*arguments)
    assert child.returncode == 2
    assert said in child.stderr


def test_rows_of_the_host_are_those_of_the_targets() -> None:
    """B4: one quick run, with little memory: the figures are there, whatever they are."""
    child = bench("host", "--quick", "--json")
    assert child.returncode in (0, 1), child.stderr
    (entry,) = json.loads(child.stdout)["benchmarks"]
    assert [row["against"] for row in entry["rows"]] == ["bare loop", "bare loop"]
    assert all(row["figure"] > 0 and row["ratio"] > 0 and row["held"] is not None for row in entry["rows"])
