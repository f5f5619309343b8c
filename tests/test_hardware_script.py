"""``make hardware`` without hardware: the whole script on the emulated library, and what it would find on a device."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.metadata import Distribution, entry_points
from pathlib import Path
from typing import Any

import pytest

from benchmarks import hardware
from benchmarks.on_device import children, main, suites
from benchmarks.on_device.apart import Clock, run_apart
from benchmarks.on_device.record import Context, NotRun, Section, check, record_of, run_section
from benchmarks.on_device.sections import SECTIONS
from benchmarks.on_device.with_torch import torch_for
from tests.emulator.control import Emulator
from vmmcache import ConfigError

SCRIPT = hardware.ROOT / "benchmarks" / "hardware.py"
VERBS = ("reserve", "create", "map", "grant", "zero", "synchronise", "unmap", "release", "free")
# What the other machine has. Neither click nor rich, no development tools, and vmmcache only as sources.
PACKAGES = ("pluggy", "pytest", "_pytest", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers")
BINDINGS = ("cuda",)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the interpreter that made ours finds those packages and no others."""
    folder = tmp_path_factory.mktemp("packages")
    for name in (*PACKAGES, *BINDINGS):
        found = importlib.util.find_spec(name)
        assert found is not None
        place = Path(next(iter(found.submodule_search_locations or [])) or str(found.origin))
        (folder / name).symlink_to(place)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return clean | {"PYTHONPATH": str(folder), "PYTHONNOUSERSITE": "1"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, bare_python: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """What the script prints, and its record."""
    path = tmp_path_factory.mktemp("record") / "record.json"
    base = getattr(sys, "_base_executable", sys.executable)
    environment = bare_python | {"VMMCACHE_DISABLE_DRIVERS": "hip"} | Emulator("cuda", "cuda-no-device").env
    child = subprocess.run(
        [base, SCRIPT, "--out", path], env=environment, capture_output=True, text=True, check=False, timeout=110
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert "vmmemu" not in child.stderr
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return child.stdout, record


def section(record: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in record["sections"] if each["name"] == name)
    return found


def test_the_record_says_that_the_device_is_emulated(ran: tuple[str, dict[str, Any]]) -> None:
    printed, record = ran
    assert (record["schema"], record["emulated"], record["device"], record["ok"]) == (1, "cuda-13", "cuda:0", True)
    assert "no accelerator can be used here" in printed
    assert "EMULATED" in printed
    assert "ModuleNotFoundError" not in printed
    assert record["versions"]["vmmcache"]
    assert record["versions"]["torch"] is None


def test_every_section_passed_except_those_that_need_torch(ran: tuple[str, dict[str, Any]]) -> None:
    _, record = ran
    statuses = {each["name"]: each["status"] for each in record["sections"]}
    assert list(statuses) == list(SECTIONS)
    without = {name for name, status in statuses.items() if status == "not run"}
    assert without == {"manager graphs", "bandwidth", "engine", "gpu tests", "expandable segments"}
    assert set(statuses.values()) == {"passed", "not run"}
    for name in without:
        assert "emulated" in section(record, name)["reason"]


def test_the_record_says_what_the_machine_is(ran: tuple[str, dict[str, Any]]) -> None:
    _, record = ran
    assert record["complete"]
    found = section(record, "machine")["results"]
    assert len(found["sources, sha256"]) == 64
    assert found["environment"]["VMMCACHE_DISABLE_DRIVERS"] == "hip"
    assert "emulated" in found["torch"]
    assert record["versions"]["cuda-bindings"] is None  # of the bindings there is the package here, and no metadata


def test_the_record_has_what_the_device_reports(ran: tuple[str, dict[str, Any]]) -> None:
    _, record = ran
    probed = section(record, "probe")["results"]
    assert (probed["ok"], probed["granule"]) == (True, 2 << 20)
    assert (probed["facts"]["rdma"], probed["facts"]["dmabuf"]) == (True, True)
    assert probed["facts"]["handle_types"] == ["posix_fd"]
    suite = section(record, "selftest")["results"]
    assert suite["outcomes"]["passed"] == len(suite["tests"]) > 100


def test_the_record_has_figures_of_every_call_and_size(ran: tuple[str, dict[str, Any]]) -> None:
    _, record = ran
    figures = section(record, "driver calls")["results"]
    assert len(figures) > 1
    for size in figures.values():
        assert set(size) >= set(VERBS)
        assert all(0 < verb["best_us"] <= verb["median_us"] for verb in size.values())
    life = section(record, "life")["results"]
    for what in "reserve", "commit and zero", "release", "restore":
        assert life[f"{what}, ms per GiB"] > 0


def test_memory_comes_back_and_its_lack_changes_nothing(ran: tuple[str, dict[str, Any]]) -> None:
    _, record = ran
    memory = section(record, "memory returns")["results"]
    assert memory["before"] == memory["asleep"] == memory["closed"] == memory["committed"] + memory["nbytes"]
    lacking = section(record, "out of memory")["results"]
    assert lacking["free_before"] == lacking["free_after"] < lacking["asked"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in lacking["error"]


def test_the_record_says_what_segments_can_be_handed_on_as(ran: tuple[str, dict[str, Any]]) -> None:
    _, record = ran
    said = section(record, "handles")["results"]
    assert (said["rdma_capable"], said["handle_types"], said["memory"]) == (True, "posix_fd", "VRAM of cuda:0")
    assert said["posix_fd"].startswith("exported in ")
    assert said["dma_buf"].startswith("exported in ")


def test_the_record_has_a_tensor_that_another_process_follows(ran: tuple[str, dict[str, Any]]) -> None:
    """C7."""
    _, record = ran
    shared = section(record, "sharing")["results"]
    assert shared["kind"] == "posix_fd"
    assert "importer process" in shared["refusal"]
    assert shared["came_back"] == 32 << 20
    assert shared["growth seen there, ms"] > 0


def test_the_record_has_a_manager_s_life_with_what_was_free(ran: tuple[str, dict[str, Any]]) -> None:
    _, record = ran
    life = section(record, "manager")["results"]
    free, nbytes = life["free"], life["nbytes"]
    assert list(free) == ["before", *life["ms"]]
    assert free["finalize"] == free["resize back"] == free["wake"] == free["before"] - nbytes
    assert free["sleep"] == free["close"] == free["before"]
    assert life["released"] == life["came_back"] == nbytes == life["budget"]["nbytes"]
    assert life["more than estimated"] == nbytes - life["estimate of 0.92"]
    assert "emulated" in life["transient peak"]


def test_where_nothing_can_be_installed_the_record_is_made_with_python_as_it_is() -> None:
    """``make hardware NOVENV=1`` makes no .venv, and asks no network."""
    command = ["make", "--dry-run", "hardware", "NOVENV=1", "PYTHON=their-python", "HARDWARE_ARGS=--device cuda:0"]
    # The tests may be run by make themselves; what it hands on to another make is not what a terminal has.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}
    planned = subprocess.run(command, cwd=hardware.ROOT, env=environment, capture_output=True, text=True, check=True)
    assert planned.stdout == "their-python benchmarks/hardware.py --device cuda:0\n"


def test_what_stands_in_for_an_installation_is_what_an_installation_has(tmp_path: Path) -> None:
    hardware.describe(tmp_path)
    (distribution,) = Distribution.discover(path=[str(tmp_path)])
    ours = {(entry.name, entry.value) for entry in distribution.entry_points if entry.group == "vmmcache"}
    assert (distribution.name, distribution.version) == ("vmmcache", Distribution.from_name("vmmcache").version)
    assert ours == {
        (entry.name, entry.value)
        for entry in entry_points(group="vmmcache")
        if entry.dist is not None and entry.dist.name == "vmmcache"
    }


# A failure of one section does not lose the rest ----------------------------------------------------------------------


def test_a_section_that_fails_keeps_what_it_has_found() -> None:
    def question(context: Context, results: dict[str, Any]) -> None:
        results["found"] = 1
        check(False, "2 is missing")

    context = Context("host", None)
    failed = run_section("half", question, context)
    assert (failed.status, failed.reason) == ("failed", "CheckFailed: 2 is missing")
    assert failed.results["found"] == 1
    assert "in question" in failed.results["traceback"][-5]
    fine = Section("fine", "passed", None, 0.0, {})
    assert not record_of(context, [fine, failed])["ok"]
    assert record_of(context, [fine, Section("x", "not run", "no torch", 0.0, {})])["ok"]


def test_errors_of_vmmcache_and_torch_are_findings_and_bugs_are_not() -> None:
    def refused(context: Context, results: dict[str, Any]) -> None:
        raise ConfigError("x", 1, "no")

    def bug(context: Context, results: dict[str, Any]) -> None:
        raise KeyError("x")

    assert run_section("refused", refused, Context("host", None)).status == "failed"
    with pytest.raises(KeyError):
        run_section("bug", bug, Context("host", None))


def test_whoever_finds_a_record_that_was_cut_short_knows_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is written after every section."""
    found: list[Any] = []

    def asked(name: str, limit_s: float, context: Context, clock: Clock) -> Section:
        found.append(json.loads(path.read_text("utf-8")) if path.exists() else None)
        return Section(name, "passed", None, 0.0, {})

    path = tmp_path / "a" / "record.json"
    monkeypatch.setattr(main, "run_apart", asked)
    assert main.everything(Context("host", None), 10.0, path, ["probe", "life", "handles"]) == 0
    assert [(each["complete"], each["ok"]) for each in found[1:]] == [(False, False)] * 2
    assert [each["status"] for each in found[2]["sections"]] == ["passed", "passed", "not run"]
    assert json.loads(path.read_text("utf-8"))["ok"]
    assert [each.name for each in path.parent.iterdir()] == ["record.json"]
    assert capsys.readouterr().out.endswith(f"{path}\n")


CRASH = "driver calls", "cuMemCreate:2:crash", 40.0, "its process was ended by SIGSEGV"
HANG = "driver calls", "cuMemCreate:2:hang", 3.0, "its process had not ended after 3 s"
NO_SECTION = "nonesuch", "", 40.0, "its process ended with status 2: .*invalid choice: 'nonesuch'"


@pytest.mark.parametrize(("name", "faults", "limit_s", "reason"), [CRASH, HANG, NO_SECTION])
def test_a_section_whose_process_does_not_end_well_is_a_failed_one(
    monkeypatch: pytest.MonkeyPatch, name: str, faults: str, limit_s: float, reason: str
) -> None:
    """And the rest goes on: each has a process of its own."""
    for variable, value in Emulator("cuda", "cuda-13", total=1 << 27, dirty=2, faults=faults).env.items():
        monkeypatch.setenv(variable, value)
    failed = run_apart(name, limit_s, Context("cuda:0", "cuda-13"), Clock(60.0))
    assert failed.status == "failed"
    assert re.match(reason, str(failed.reason))
    if faults.endswith("hang"):
        # Where it was is seen, also where no Python runs any more.
        assert any("_driver.py" in line and "_memory" in line for line in failed.results["messages"])
    assert not record_of(Context("cuda:0", "cuda-13"), [failed])["ok"]


def test_a_section_that_takes_too_long_tells_what_it_has_found_and_where_it_was(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from benchmarks.on_device import main
from benchmarks.on_device.record import Context
from benchmarks.on_device.sections import Question
def ask(context, results):
    results["found"] = 1
    time.sleep(60)
main.SECTIONS["probe"] = Question(ask)
main.one("probe", Context("host", None, time.monotonic() + 0.8), Path(sys.argv[1]))
"""
    ended = children.run([sys.executable, "-c", script, tmp_path / "section.json"], 20.0)
    assert ended.trouble == "ended with status 1"
    late = Section(**json.loads((tmp_path / "section.json").read_text("utf-8")))
    assert (late.status, late.reason) == ("failed", "TimeOver: it takes longer than it may")
    assert ended.messages[-1].endswith(late.reason or "")
    assert late.results["found"] == 1
    assert any("in ask" in line for line in late.results["traceback"])


def test_of_a_program_that_is_stopped_there_is_what_it_said(tmp_path: Path) -> None:
    script = "import sys, time; print('said', flush=True); print('more', file=sys.stderr, flush=True); time.sleep(60)"
    ended = children.run([sys.executable, "-c", script], 1.5, apart=True)
    assert (ended.trouble, ended.messages) == ("had not ended after 2 s", ["said", "more"])
    assert children.run([sys.executable, "-c", "import os; os.abort()"], 20.0).trouble == "was ended by SIGABRT"
    assert children.run([sys.executable, "-c", "import os; print(os.environ['A'])"], 20.0, {"A": "b"})[:2] == (
        None,
        "b\n",
    )


def test_when_the_time_for_all_is_over_the_rest_is_not_run() -> None:
    late = run_apart("probe", 40.0, Context("host", None), Clock(0.0))
    assert (late.status, late.reason) == ("not run", "the time for all sections is over")


def test_a_device_that_cannot_be_used_fails_the_probe_and_the_suite() -> None:
    context = Context("nonesuch:0", None)
    for name in "probe", "selftest", "driver calls":
        failed = run_section(name, SECTIONS[name].ask, context)
        assert failed.status == "failed"
        assert failed.reason


def test_a_device_that_gives_more_than_it_has_is_noticed() -> None:
    """It says of 1 GiB that a quarter is free."""
    script = """
import dataclasses
from benchmarks.on_device.driver_calls import out_of_memory
from benchmarks.on_device.record import Context, run_section
from vmmcache_cuda._driver import CudaDriver
honest = CudaDriver.memory_info
CudaDriver.memory_info = lambda self: dataclasses.replace(honest(self), free=256 << 20)
print(run_section("out of memory", out_of_memory, Context("cuda:0", "cuda-13")).reason)
"""
    child = Emulator("cuda", "cuda-13", total=1 << 30, dirty=2).run(script)
    assert "CheckFailed: 352321536 bytes were committed, although 268435456 were free" in child.stdout, child.stderr


# What needs torch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "reason"), [(Context("cuda:0", "cuda-13"), "emulated")])
def test_without_a_device_for_torch_its_sections_say_why(context: Context, reason: str) -> None:
    with pytest.raises(NotRun, match=reason):
        torch_for(context)


def test_the_gpu_tests_are_found_and_run_without_our_settings_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here they are skipped, each with the reason."""
    monkeypatch.setattr(suites, "torch_for", lambda context: None)
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "cuda,hip")
    results: dict[str, Any] = {}
    with pytest.raises(NotRun):
        suites.gpu_tests(Context("cuda:0", None), results)
    assert any("disabled by VMMCACHE_DISABLE_DRIVERS" in test["message"] for test in results["tests"])
    names = {test["name"].partition("[")[0] for test in results["tests"]}
    assert "test_a_graph_captured_on_the_first_bytes_replays_after_growth_release_and_restore" in names
    assert "test_graphs_captured_in_warm_up_serve_to_the_end" in names
    assert {test["outcome"] for test in results["tests"]} == {"skipped"}
