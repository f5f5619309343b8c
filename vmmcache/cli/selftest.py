"""``vmmcache selftest``: the shipped conformance suite on a live device."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from typing import IO, Any, Final

import click

from vmmcache.cli._output import EXIT_NO, emit_json, json_option
from vmmcache.errors import DriverUnavailable
from vmmcache.plugins.host import split_device
from vmmcache.probing import probe

__all__ = ["command"]

_NEEDS: Final = ("pytest", "hypothesis")


@click.command("selftest")
@click.argument("device")
@json_option
def command(device: str, as_json: bool) -> int:
    """Run the conformance suite on DEVICE, for example cuda:0, hip:0 or host.

    One test for each promise that vmmcache relies on, with real memory of the device: a few granules, given back
    afterwards. The JSON object is fit to be attached to an issue. The exit status is 0 if every promise is kept.
    """
    split_device(device)
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise DriverUnavailable(
            f"the suite needs {' and '.join(missing)}",
            cure="pip install 'vmmcache[testing]'",
            driver=device,
            call="selftest",
        )
    report = probe(device)
    tests = list(_run(device, progress=not as_json)) if report.ok else []
    counts = {outcome: sum(test["outcome"] == outcome for test in tests) for outcome in ("passed", "failed", "skipped")}
    counts["failed"] = len(tests) - counts["passed"] - counts["skipped"]
    ok = report.ok and counts["passed"] > 0 and not counts["failed"]
    result = {
        "schema": 1,
        "device": device,
        "ok": ok,
        "vmmcache": version("vmmcache"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "probe": report.to_dict(),
        **counts,
        "tests": tests,
    }
    if as_json:
        emit_json(result)
    else:
        _print(result)
    return 0 if ok else EXIT_NO


def _run(device: str, *, progress: bool) -> Iterator[dict[str, Any]]:
    """Outcome of each test. One that takes the process along is an outcome, too."""
    from rich.console import Console
    from rich.progress import Progress

    with (
        tempfile.TemporaryFile("w+") as messages,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "vmmcache.testing.selftest", device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            env=_environment(),
        ) as child,
        Progress(console=Console(stderr=True), transient=True, disable=not (progress and sys.stderr.isatty())) as bar,
    ):
        assert child.stdout is not None  # a pipe
        task = bar.add_task(device, total=None)
        running: str | None = None
        for line in child.stdout:
            event = json.loads(line)
            if event["event"] == "collected":
                bar.update(task, total=event["tests"])
            elif event["event"] == "start":
                running = event["name"]
            else:
                running = None
                bar.advance(task)
                yield {key: event[key] for key in ("name", "outcome", "ms", "message")}
        status = child.wait()
        if running is not None or status not in (0, 1):
            yield {"name": running or "the suite", "outcome": "crashed", "ms": 0.0, "message": _death(status, messages)}


def _environment() -> dict[str, str]:
    # With PYTHONOPTIMIZE the suite would assert nothing.
    return {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}


def _death(status: int, messages: IO[str]) -> str:
    messages.seek(0)
    lines = messages.read().strip().splitlines()
    # Where Python says what it was doing, the innermost call comes first, and the library's last words stand before.
    place = next((place for place, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines) - 10)
    how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return "\n".join([f"the process {how}", *lines[max(0, place - 10) : max(0, place) + 10]])


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if result["probe"]["reason"]:
        console.print(f"{result['device']} cannot be used: {result['probe']['reason']}", soft_wrap=True, markup=False)
        console.print(f"cure: {result['probe']['cure']}", soft_wrap=True, markup=False)
        return
    colors = {"passed": "green", "skipped": "yellow"}
    table = Table(box=None, padding=(0, 1))
    table.add_column("promise", overflow="fold")
    table.add_column("")
    table.add_column("ms", justify="right", style="dim")
    for test in result["tests"]:
        sentence = test["name"].removeprefix("test_").replace("_", " ")
        color = colors.get(test["outcome"], "red")
        table.add_row(escape(sentence), f"[{color}]{test['outcome']}[/]", f"{test['ms']:.1f}")
    console.print(table)
    for test in result["tests"]:
        if test["outcome"] not in colors:
            console.print(f"\n{test['name']}: {test['message']}", soft_wrap=True, markup=False)
    for reason in dict.fromkeys(test["message"] for test in result["tests"] if test["outcome"] == "skipped"):
        console.print(f"\nnot asked: {reason}", soft_wrap=True, markup=False)
    counts = f"{result['passed']} kept, {result['failed']} broken, {result['skipped']} not asked"
    console.print(f"\n{result['device']}: {counts}", markup=False)
