"""R1 to R3: what a machine can do, asked in child processes, with an answer to every question."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import usage
from vmmcache import ConfigError, ProbeReport, probe, vmm_unavailable_reason
from vmmcache.probing import best_device, probe_all

PLUGINS = Path(__file__).parent / "plugins"
KEYS = {
    "index", "name", "vmm", "reason", "cure", "granule", "granularity", "memory", "max_reservation", "handle_types",
    "rdma", "dmabuf", "quirks", "steps", "device",
}  # fmt: skip
STEPS = [
    "load", "open", "granularity", "memory", "round trip", "second allocation", "large reservation", "handle types",
    "rdma", "dma-buf", "fd limit",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _only_the_host_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever GPUs the machine has that runs the tests."""
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "cuda,hip")


def only(name: str) -> dict[str, Any]:
    (entry,) = probe_all(name)["drivers"]
    found: dict[str, Any] = entry
    return found


@pytest.fixture(scope="module")
def host() -> dict[str, Any]:
    return only("host")


def test_the_host_can_do_everything_that_is_needed(host: dict[str, Any]) -> None:
    (device,) = host["devices"]
    assert (host["status"], host["reason"], device["vmm"], device["reason"]) == ("ok", None, True, None)
    assert (device["index"], device["device"], device["granule"]) == (0, "host", 2 << 20)
    assert device["granularity"]["minimum"] == os.sysconf("SC_PAGE_SIZE")
    assert device["memory"]["total"] >= device["memory"]["free"] > 0
    assert device["memory"]["source"] in ("MemAvailable", "cgroup")
    assert device["max_reservation"] >= 1 << 40
    assert device["handle_types"] == ["posix_fd"]


def test_each_question_is_a_step_with_an_answer_or_a_reason_and_a_cure(host: dict[str, Any]) -> None:
    """R1."""
    (device,) = host["devices"]
    steps = [*host["steps"], *device["steps"]]
    assert [step["name"] for step in steps] == STEPS
    assert set(device) >= KEYS
    for step in steps:
        assert set(step) == {"name", "ok", "reason", "detail", "cure", "ms"}
        assert bool(step["detail"]) == step["ok"]
        assert bool(step["reason"]) == bool(step["cure"]) == (not step["ok"])
        assert step["ms"] >= 0


def test_what_is_nice_to_have_does_not_make_a_device_unusable(host: dict[str, Any]) -> None:
    (device,) = host["devices"]
    refused = {step["name"] for step in device["steps"] if not step["ok"]}
    assert {"rdma", "dma-buf"} <= refused
    assert (device["rdma"], device["dmabuf"], device["vmm"]) == (False, False, True)


def test_the_report_of_one_device_has_the_driver_s_steps_first() -> None:
    report = probe("host")
    assert isinstance(report, ProbeReport)
    assert (report.ok, report.driver, report.device) == (True, "host", "host")
    assert (report.reason, report.cure, report.granule) == (None, None, 2 << 20)
    assert [step.name for step in report.steps] == STEPS
    assert report.facts["handle_types"] == ["posix_fd"]
    again = json.loads(json.dumps(report.to_dict()))
    assert again["steps"][0]["name"] == "load"


def test_probing_leaves_nothing_in_this_process() -> None:
    """R2."""
    before = usage(), len(os.listdir("/proc/self/fd"))
    probe("host")
    assert (usage(), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("nonesuch", "no driver of that name is installed"),
        ("nonesuch:3", "no driver of that name is installed"),
        ("host:1", "there is no device 1; host has 1"),
        ("cuda:0", "disabled by VMMCACHE_DISABLE_DRIVERS"),
    ],
)
def test_a_device_that_there_is_not_is_an_answer(device: str, reason: str) -> None:
    report = probe(device)
    assert (report.ok, report.device, report.granule) == (False, device, None)
    assert reason in str(report.reason)
    assert report.cure


@pytest.mark.parametrize("device", ["", "host:", "host:x", 0, None], ids=repr)
def test_what_is_no_device_string_is_an_error(device: str) -> None:
    with pytest.raises(ConfigError, match="device="):
        probe(device)


def test_engines_ask_for_the_reason_only() -> None:
    """R3."""
    assert vmm_unavailable_reason("host") is None
    assert "no driver of that name" in str(vmm_unavailable_reason("nonesuch:0"))


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1s"])
def test_a_timeout_is_a_positive_number_of_seconds(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("VMMCACHE_PROBE_TIMEOUT_S", value)
    with pytest.raises(ConfigError, match="VMMCACHE_PROBE_TIMEOUT_S="):
        probe_all("host")


def test_without_an_accelerator_the_host_is_chosen_and_it_says_why() -> None:
    """I15."""
    report = probe_all()
    assert (report["selected"], report["accelerator"]) == ("host", False)
    choice = best_device()
    assert choice.device == "host"
    assert "no accelerator can be used" in choice.why


def test_the_child_looks_for_plug_ins_where_its_parent_does_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file in the folder that one happens to stand in is not taken for a module."""
    for name in ("vmmcache.py", "json.py", "vmmcache_host.py"):
        (tmp_path / name).write_text("raise SystemExit('imported by accident')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert probe("host").ok
