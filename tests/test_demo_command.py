from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_tiny import BLOCK, TINY
from vmmcache import DriverUnavailable, open_driver
from vmmcache.cli import main
from vmmcache.demo import where
from vmmcache.demo.where import Place, choose
from vmmcache.plugins import host
from vmmcache.probing import Choice
from vmmcache_host._driver import HostDriver


@pytest.fixture
def tiny_file(tmp_path: Path) -> str:
    # A folder whose name means something to the library that prints tables.
    folder = tmp_path / "[" / "bold]"
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text(json.dumps(TINY), encoding="utf-8")
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["demo", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code, *capsys.readouterr()


# Where it runs --------------------------------------------------------------------------------------------------------


class Stranger(HostDriver):
    """A driver whose device no torch knows."""

    name = "musa"

    @property
    def torch_device(self) -> str:
        return "musa:0"


def test_a_device_that_torch_cannot_reach_is_refused_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(host._opened, (os.getpid(), "musa", 0), Stranger())
    with pytest.raises(DriverUnavailable, match="this torch cannot make a tensor on musa:0") as caught:
        choose("musa:0")
    assert "--device host" in caught.value.cure


def test_a_device_that_torch_cannot_reach_is_not_chosen_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(host._opened, (os.getpid(), "musa", 0), Stranger())
    monkeypatch.setattr(where, "best_device", lambda: Choice("musa:0", "it is the first"))
    place = choose(None)
    assert place.driver.name == "host"
    assert "it is the first" in place.why
    assert "this torch cannot reach it" in place.why


def test_the_best_device_is_chosen_with_the_reason_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "best_device", lambda: Choice("host", "there is nothing else"))
    assert choose(None) == Place(open_driver("host"), "there is nothing else")


# The command ----------------------------------------------------------------------------------------------------------


def test_json_is_the_whole_report_and_nothing_else(capsys: pytest.CaptureFixture[str], tiny_file: str) -> None:
    status, out, err = run(capsys, "--model", tiny_file, "--tokens", "4", "--json")
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert report["ok"] is True
    assert report["model"]["name"] == tiny_file
    assert report["workload"]["decode_steps"] == 4
    assert report["driver"]["why"]


def test_people_get_tables_with_the_driver_and_the_reason(capsys: pytest.CaptureFixture[str], tiny_file: str) -> None:
    status, out, err = run(capsys, "--device", "host", "--model", tiny_file, "--tokens", "4")
    assert (status, err) == (0, "")
    assert "host: you asked for it" in out
    assert "shrink refused under a lease" in out
    assert "Everything held" in out
    assert "\x1b" not in out


def test_a_failure_prints_the_report_so_far_with_its_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_file: str
) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    status, out, _ = run(capsys, "--device", "host", "--model", tiny_file, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["ok"] is False
    assert report["error"]["type"] == "PlanError"
    assert report["layout"]["block_bytes"] == BLOCK
    status, out, err = run(capsys, "--device", "host", "--model", tiny_file)
    assert status == 1
    assert "Not everything held: it ended early" in out
    assert "16 MiB is free" in err


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("{", "model"),
        (json.dumps(TINY | {"architectures": ["MambaForCausalLM"]}), "architectures"),
        (
            json.dumps({name: value for name, value in TINY.items() if name != "num_key_value_heads"}),
            "num_key_value_heads",
        ),
    ],
)
def test_a_config_that_is_wrong_is_wrong_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, field: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(content, encoding="utf-8")
    status, out, _ = run(capsys, "--device", "host", "--model", str(file), "--json")
    error = json.loads(out)["error"]
    assert (status, error["type"], error["field"]) == (2, "ConfigError", field)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--model", "no-such-model"), 2),
        (("--tokens", "0"), 2),
        (("--device", "host:"), 2),
        (("--device", "nosuchdriver"), 1),
    ],
)
def test_wrong_use_and_a_device_that_is_not_there_differ(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int
) -> None:
    found, out, _ = run(capsys, *arguments, "--json")
    assert found == status
    assert json.loads(out)["error"]["message"]


def program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_help_names_the_models_and_needs_no_torch() -> None:
    answer = program(
        "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); "
        "from vmmcache.cli import main; main(['demo', '--help'])"
    )
    assert answer.returncode == 0
    assert "llama-3.1-8b" in answer.stdout
    assert answer.stdout.endswith("False\n")


def test_without_torch_the_command_says_what_to_install() -> None:
    answer = program("import sys; sys.modules['torch'] = None; from vmmcache.cli import main; main(['demo', '--json'])")
    assert answer.returncode == 1
    error = json.loads(answer.stdout)["error"]
    assert error["type"] == "DriverUnavailable"
    assert "torch is not installed" in error["reason"]
    assert "extra `torch`" in error["cure"]
