"""R2, R5: strangers' libraries crash, hang, shout and lie in a process of their own, and each is a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vmmcache import DriverUnavailable, probe, vmm_unavailable_reason
from vmmcache.probing import best_device, probe_all, process
from vmmcache.probing.process import ProbeProcess

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


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS / "stranger"))


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS / "troubled"))


def only(name: str) -> dict[str, Any]:
    (entry,) = probe_all(name)["drivers"]
    found: dict[str, Any] = entry
    return found


@pytest.mark.usefixtures("troubled")
@pytest.mark.parametrize(
    ("name", "reason", "cure"),
    [
        ("crashing", "the probe died of SIGSEGV", "Reinstall or update"),
        ("exiting", "the probe failed: RuntimeError: acme: error 999 [unknown]", "author of the plug-in"),
        ("refusing", "runtime 3.1 is older than 3.2", "Update the runtime"),
        ("lying", "[/dev/acme0] is held by [bold]somebody[/bold]", "Ask [them]"),
        ("no_drivers", "open(0) of the plug-in raised RuntimeError: acme: error 999", "Repair, update or remove"),
        ("noisy", "there is no acme", "Buy one"),
        ("silent", "the probe ended without an answer", "author of the plug-in"),
        ("unmeasured", "NaN is no number of JSON's", "author of the plug-in"),
    ],
)
def test_whatever_a_library_does_is_a_reason_with_a_cure(name: str, reason: str, cure: str) -> None:
    """R2, R5, I15."""
    entry = only(name)
    assert (entry["name"], entry["origin"], entry["status"]) == (name, "acme-troubled 1.0", "unavailable")
    assert reason in entry["reason"]
    assert cure in entry["cure"]
    report = probe(f"{name}:0")
    assert not report.ok
    assert reason in str(report.reason)
    assert vmm_unavailable_reason(name) == report.reason


@pytest.mark.usefixtures("troubled")
def test_a_library_that_hangs_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2."""
    monkeypatch.setenv("VMMCACHE_PROBE_TIMEOUT_S", "0.75")
    entry = only("hanging")
    assert entry["status"] == "unavailable"
    assert entry["reason"].endswith("no answer within 0.75 s; the vendor's library, or the device, hangs")
    assert "VMMCACHE_PROBE_TIMEOUT_S" in entry["cure"]


@pytest.mark.usefixtures("troubled")
def test_a_process_that_nothing_can_end_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call hangs deep in a kernel module, no signal reaches it, and it is not waited for (R2)."""
    monkeypatch.setattr(process, "_DYING_S", 0.1)
    kill, stuck = os.killpg, []
    monkeypatch.setattr(os, "killpg", lambda pid, number: stuck.append(pid))
    child = ProbeProcess("hanging")
    with pytest.raises(DriverUnavailable, match=r"hangs, and process \d+ cannot be ended"):
        child.finish(0.0, 0.3, "LONGER")
    kill(stuck[0], signal.SIGKILL)
    assert child._process is not None
    child._process.wait()


@pytest.mark.usefixtures("troubled")
def test_whoever_loses_patience_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt of the terminal does not reach a process in a session of its own."""
    started: list[subprocess.Popen[bytes]] = []

    class Remembered(subprocess.Popen[bytes]):
        """And those of connectors hang as well."""

        def __init__(self, command: list[str], **options: Any) -> None:
            hanging = [sys.executable, "-c", "import threading; threading.Event().wait()"]
            super().__init__(hanging if command[-1] == "connector" else command, **options)
            started.append(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Remembered)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2)
        with pytest.raises(KeyboardInterrupt):
            probe_all(connectors=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(started) > 5
    assert [child.args for child in started if child.poll() is None] == []


def test_a_probe_that_cannot_be_started_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2, R3: an interpreter that is embedded in another program may not know its own name."""
    files = len(os.listdir("/proc/self/fd"))
    for executable in ("", None, "/nonexistent/python"):
        monkeypatch.setattr(sys, "executable", executable)
        report = probe("host")
        assert "the probe's process cannot be started: " in str(report.reason)
        assert "sys.executable" in str(report.cure)
        assert vmm_unavailable_reason("host") == report.reason
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.usefixtures("troubled")
def test_a_library_that_hangs_and_has_left_a_process_behind_is_a_reason_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process holds the pipes of the probe, and lives for as long as this test does."""
    end = tmp_path / "end of the service"
    os.mkfifo(end)
    monkeypatch.setenv("ACME_SERVICE", str(end))
    # Long enough for the process to be there.
    monkeypatch.setenv("VMMCACHE_PROBE_TIMEOUT_S", "3")
    try:
        entry = only("leaving")
    finally:
        end.write_text("")
    assert "no answer within 3 s" in entry["reason"]


@pytest.mark.usefixtures("troubled")
def test_the_first_question_that_is_not_answered_ends_the_survey() -> None:
    entry = only("refusing")
    assert [step["ok"] for step in entry["steps"]] == [True, False]
    assert entry["devices"] == []


@pytest.mark.usefixtures("troubled")
def test_devices_that_cannot_be_opened_are_listed_with_their_reasons() -> None:
    entry = only("lying")
    assert [(device["index"], device["name"], device["vmm"]) for device in entry["devices"]] == [
        (0, "Acme [A1]", False),
        (1, "Acme [/A2]", False),
    ]
    assert "[/dev/acme1]" in entry["devices"][1]["reason"]
    assert [step["name"] for step in entry["devices"][0]["steps"]] == ["open"]
    assert probe("lying:1").reason == entry["devices"][1]["reason"]
    assert "lying has 2" in str(probe("lying:2").reason)


@pytest.mark.usefixtures("stranger")
def test_a_strangers_accelerator_is_chosen_before_the_host() -> None:
    report = probe_all()
    assert (report["schema"], report["selected"], report["accelerator"]) == (1, "musa:0", True)
    entry = next(entry for entry in report["drivers"] if entry["name"] == "musa")
    assert entry["library"] == {"path": "/usr/lib/libmusa.so.4", "version": "4.0"}
    assert [device["device"] for device in entry["devices"]] == ["musa:0", "musa:1"]
    assert entry["devices"][1]["quirks"] == ["an allocation cannot be exported twice"]
    assert best_device().device == "musa:0"
    assert probe("musa:1").ok
    assert "musa has 2" in str(probe("musa:2").reason)


def test_a_broken_plug_in_does_not_keep_others_from_being_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS / "broken"))
    report = probe_all()
    broken = {entry["name"]: entry for entry in report["drivers"] if entry["origin"] == "acme-broken 1.0"}
    assert all(entry["status"] == "broken" and entry["reason"] and entry["cure"] for entry in broken.values())
    assert {"raising", "misspelt", "host"} <= set(broken)
    assert report["selected"] == "host"


def test_a_stranger_that_claims_our_name_is_not_asked_in_our_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS / "broken"))
    assert probe("host").ok
    entries = probe_all("host")["drivers"]
    assert [entry["status"] for entry in entries] == ["ok", "broken", "broken"]
