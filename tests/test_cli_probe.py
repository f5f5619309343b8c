"""R4: ``vmmcache probe``, as people and programs run it: output, streams and exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE_S

PLUGINS = Path(__file__).parent / "plugins"


def vmmcache(*arguments: str, plugins: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the test's plug-ins beside ours, of which only the host is left."""
    path = os.pathsep.join([*(str(PLUGINS / each) for each in plugins), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "vmmcache", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": path, "VMMCACHE_DISABLE_DRIVERS": "cuda,hip", **environment},
    )


def as_json(child: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one object on standard output."""
    report: dict[str, Any] = json.loads(child.stdout)
    assert report["schema"] == 1
    return report


def test_a_machine_without_a_gpu_is_usable_by_its_host_driver() -> None:
    child = vmmcache("probe", "--json")
    report = as_json(child)
    assert (child.returncode, child.stderr) == (0, "")
    assert (report["selected"], report["accelerator"]) == ("host", False)
    entry = next(entry for entry in report["drivers"] if entry["name"] == "host")
    assert set(entry) == {"name", "origin", "status", "reason", "cure", "library", "devices", "steps"}


def test_people_get_a_table_without_escape_codes_where_it_is_no_terminal() -> None:
    child = vmmcache("probe")
    assert (child.returncode, child.stderr) == (0, "")
    for part in ("host", "ok", "usable", "round trip", "2 MiB", "selected: host (no accelerator)"):
        assert part in child.stdout
    assert "\x1b" not in child.stdout


def test_every_driver_is_shown_with_its_reason_and_cure() -> None:
    child = vmmcache("probe", plugins=("broken",))
    assert child.returncode == 0
    for part in ("raising", "broken", "acme-broken 1.0", "libacme.so.3 is older", "Repair, update or remove"):
        assert part in child.stdout


def test_text_of_strangers_is_shown_as_it_is() -> None:
    """It may contain what looks like mark-up."""
    child = vmmcache("probe", "--driver", "lying", plugins=("troubled",))
    assert "Traceback" not in child.stderr
    assert child.returncode == 1
    text = " ".join(child.stdout.split())
    for part in ("Acme [A1]", "Acme [/A2]", "[bold]somebody[/bold]", "/opt/[acme]/libacme.so", "3 [beta]"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "plugins", "status"),
    [
        (("--driver", "host"), (), 0),
        (("--driver", "host", "--device", "0"), (), 0),
        (("--driver", "host", "--device", "1"), (), 1),
        (("--driver", "refusing"), ("troubled",), 1),
        (("--driver", "raising"), ("broken",), 1),
        (("--driver", "musa", "--device", "1"), ("stranger",), 0),
        (("--driver", "musa", "--device", "2"), ("stranger",), 1),
        (("--driver", "host"), ("broken",), 0),
    ],
)
def test_the_exit_status_speaks_of_the_driver_and_device_that_was_asked_for(
    arguments: tuple[str, ...], plugins: tuple[str, ...], status: int
) -> None:
    child = vmmcache("probe", "--json", *arguments, plugins=plugins)
    assert child.returncode == status
    assert {entry["name"] for entry in as_json(child)["drivers"]} == {arguments[1]}


@pytest.mark.parametrize(("index", "status"), [("0", 0), ("1", 0), ("2", 1)])
def test_a_device_without_a_driver_is_any_drivers(index: str, status: int) -> None:
    child = vmmcache("probe", "--json", "--device", index, plugins=("stranger",))
    assert child.returncode == status
    assert {"host", "musa"} <= {entry["name"] for entry in as_json(child)["drivers"]}


def test_without_a_usable_driver_the_status_is_1_and_the_report_is_printed() -> None:
    child = vmmcache("probe", "--json", VMMCACHE_DISABLE_DRIVERS="host,cuda,hip")
    report = as_json(child)
    assert child.returncode == 1
    assert (report["selected"], report["accelerator"]) == (None, False)
    assert {entry["reason"] for entry in report["drivers"]} == {"disabled by VMMCACHE_DISABLE_DRIVERS"}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("--driver", "nonesuch"), "ConfigError", "no driver of that name is installed"),
        (("--device", "-1", "--driver", "host"), "UsageError", "-1"),
        (("--device", "x", "--driver", "host"), "UsageError", "x"),
        (("--no-such-option",), "UsageError", "--no-such-option"),
        (("surplus",), "UsageError", "surplus"),
    ],
)
def test_wrong_use_is_status_2_and_an_error_object(arguments: tuple[str, ...], kind: str, message: str) -> None:
    child = vmmcache("probe", "--json", *arguments)
    error = as_json(child)["error"]
    assert child.returncode == 2
    assert error["type"] == kind
    assert message in error["message"]
    plain = vmmcache("probe", *arguments)
    assert (plain.returncode, plain.stdout) == (2, "")
    assert message in plain.stderr


def test_a_wrong_setting_is_wrong_use() -> None:
    child = vmmcache("probe", "--json", VMMCACHE_PROBE_TIMEOUT_S="soon")
    assert child.returncode == 2
    assert "VMMCACHE_PROBE_TIMEOUT_S" in as_json(child)["error"]["message"]


def test_what_plug_ins_print_never_gets_between_the_lines() -> None:
    """R4: one JSON object on standard output, everything else on standard error."""
    quiet = "cuda,hip,hanging,leaving"
    child = vmmcache("probe", "--json", plugins=("troubled",), VMMCACHE_DISABLE_DRIVERS=quiet)
    report = as_json(child)
    assert "noise" not in child.stdout
    assert "noise: imported" in child.stderr
    noisy = next(entry for entry in report["drivers"] if entry["name"] == "noisy")
    assert noisy["reason"] == "there is no acme"


def test_no_torch_is_needed() -> None:
    """R4."""
    child = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vmmcache", "probe", "--json", "--driver", "host"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    imported = {line.rpartition("|")[2].strip() for line in child.stderr.splitlines() if line.startswith("import time")}
    assert "vmmcache.probing.report" in imported
    assert imported.isdisjoint({"torch", "numpy", "cuda", "hip"})


def test_help_explains() -> None:
    child = vmmcache("probe", "--help")
    assert (child.returncode, child.stderr) == (0, "")
    for part in ("--driver", "--device", "--json", "child process", "exit status is 0"):
        assert part in " ".join(child.stdout.split())


def test_the_command_alone_shows_its_commands_and_is_wrong_use() -> None:
    child = vmmcache()
    assert child.returncode == 2
    assert "probe" in child.stdout + child.stderr
    version = vmmcache("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("vmmcache ")
