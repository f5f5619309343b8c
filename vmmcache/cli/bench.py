"""``vmmcache bench``: what things cost on this machine, each figure beside what it is compared with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

import click

from vmmcache.benchmarks.catalog import ALL, Benchmark, chosen, find, shipped
from vmmcache.benchmarks.harness import QUICK_ROUNDS, ROUNDS, environment
from vmmcache.cli._output import EXIT_NO, emit_json, json_option
from vmmcache.errors import ConfigError

__all__ = ["command"]


@click.command("bench", epilog=f"NAME: {', '.join([*shipped(), ALL])}, or one of a FOLDER.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Fewer rounds and less memory: to see that it runs. Figures are rough.")
@click.option(
    "--with",
    "folders",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="A folder with more of them: Python files that define measure(). May be given several times.",
)
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the JSON there.")
@json_option
def command(names: tuple[str, ...], quick: bool, folders: tuple[Path, ...], record: Path | None, as_json: bool) -> int:
    """Measure what things cost on this machine.

    Each figure is the best of its rounds, and stands beside what it is compared with, measured in turns with it. Those
    that have a target say whether it holds; targets are meant for a machine that does nothing else. By default all
    benchmarks run, each in a process of its own.

    Exit status: 0 every target holds, 1 one was missed or a benchmark could not be run, 2 wrong use.
    """
    there = find(folders)
    wanted = chosen(names, there)
    where = environment()
    results = []
    for result in _run(wanted, quick):
        results.append(result)
        if not as_json:
            # Each as soon as it is known: all of them together take minutes.
            _print_result(result)
    # Where all were asked for, one that this machine cannot run is no failure; one that was named is.
    may_lack = not names or ALL in names
    ok = all(result["status"] == "ok" or (may_lack and result["status"] == "unavailable") for result in results)
    report = {
        "schema": 1,
        "ok": ok and any(result["status"] == "ok" for result in results),
        "vmmcache": version("vmmcache"),
        "quick": quick,
        "rounds": QUICK_ROUNDS if quick else ROUNDS,
        "environment": where,
        "benchmarks": results,
    }
    if record is not None:
        _write(record, report)
    if as_json:
        emit_json(report)
    else:
        _print_end(report)
    return 0 if report["ok"] else EXIT_NO


def _run(wanted: Sequence[Benchmark], quick: bool) -> Iterator[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console, quiet = Console(stderr=True), not sys.stderr.isatty()
    for number, benchmark in enumerate(wanted, 1):
        # On standard error, and on a terminal only: standard output belongs to the figures. Gone before they come.
        with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
            task = bar.add_task(f"{benchmark.name} ({number} of {len(wanted)})", total=None)

            def advance(done: int, rounds: int, bar: Progress = bar, task: TaskID = task) -> None:
                bar.update(task, completed=done, total=rounds)

            result = _outcome(benchmark, quick, advance)
        yield result


def _outcome(benchmark: Benchmark, quick: bool, advance: Callable[[int, int], None]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    reason = cure = None
    if missing := benchmark.missing():
        status = "unavailable"
        reason = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed"
        cure = f"pip install {' '.join(missing)}"
    else:
        answered, failure = _child(benchmark, quick, advance)
        if answered is None:
            status, reason = "failed", failure
        else:
            rows = answered
            status = "missed" if any(row["held"] is False for row in rows) else "ok"
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "status": status,
        "reason": reason,
        "cure": cure,
        "rows": rows,
    }


def _child(
    benchmark: Benchmark, quick: bool, advance: Callable[[int, int], None]
) -> tuple[list[dict[str, Any]] | None, str | None]:
    """The rows that the benchmark's own process says; or None, and what became of it."""
    with (
        tempfile.TemporaryFile("w+") as messages,
        subprocess.Popen(
            [sys.executable, "-m", "vmmcache.cli._bench_child", str(benchmark.path), "quick" if quick else "full"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        ) as child,
    ):
        rows: list[dict[str, Any]] | None = None
        assert child.stdout is not None  # a pipe
        for line in child.stdout:
            said = json.loads(line)
            if "rows" in said:
                rows = said["rows"]
            else:
                advance(said["done"], said["rounds"])
        status = child.wait()
        if status or rows is None:
            return None, _death(status, messages)
        return rows, None


def _death(status: int, messages: IO[str]) -> str:
    messages.seek(0)
    lines = messages.read().strip().splitlines()[-20:]
    how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return "\n".join([f"its process {how}", *lines])


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError("--record", str(path), f"cannot be written: {error.strerror}") from error


def _print_result(result: dict[str, Any]) -> None:
    from vmmcache.cli._bench_table import console, show_rows

    output = console()
    if result["rows"]:
        show_rows(output, result["title"], result["rows"])
    else:
        output.print(f"{result['title']}: {result['status']}: {result['reason']}", markup=False, soft_wrap=True)
        if result["cure"]:
            output.print(f"  cure: {result['cure']}", markup=False, soft_wrap=True)
        output.print()
    sys.stdout.flush()  # also where it is a pipe or a file


def _print_end(report: dict[str, Any]) -> None:
    from vmmcache.cli._bench_table import console, show_environment

    output = console()
    show_environment(output, report["environment"])
    if report["quick"]:
        output.print(f"[yellow]The best of {report['rounds']} rounds, with little memory: figures are rough.[/]")
    said = []
    for status, what in _VERDICTS.items():
        if names := [result["name"] for result in report["benchmarks"] if result["status"] == status]:
            said.append(f"{what}: {', '.join(names)}")
    output.print("; ".join(said) or "every target holds", markup=False)


_VERDICTS: Final = {"missed": "missed a target", "failed": "failed", "unavailable": "could not be run here"}
