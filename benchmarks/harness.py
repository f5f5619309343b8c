"""What every benchmark shares: measuring in turns, a table, a JSON record, and an exit status that says if it held.

A figure is the best of its rounds: noise on a machine only ever adds time. Cases that are compared take turns, so that
what slows the machine for a while slows all of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["ROUNDS", "Row", "best_in_turns", "run", "seconds"]

SCHEMA: Final = 1
ROUNDS: Final = 9
BUSY: Final = 1.2
"""Load of a machine that does more than measure: 1 may be the benchmark before this one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, what it is compared with, and what it has to be."""

    name: str
    figure: float
    unit: str
    against: str | None = None
    """What the figure is compared with."""
    against_figure: float | None = None
    """In the same unit."""
    judged: float | None = None
    """The number that the target speaks of: a ratio, a difference, or the figure itself."""
    target: str | None = None
    """In words; None for a figure that is only shown."""
    held: bool | None = None

    @property
    def ratio(self) -> float | None:
        return self.figure / self.against_figure if self.against_figure else None


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, with the garbage collector held back."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()


def best_in_turns(cases: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """The least that each case returns over `rounds`; the order turns round from one round to the next."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in list(cases)[:: -1 if number % 2 else 1]:
            figures[name].append(cases[name]())
    return {name: min(values) for name, values in figures.items()}


def run(title: str, measure: Callable[[], Sequence[Row]]) -> int:
    """Measure, print the table, write the record where ``--json PATH`` says so; 1 where a target was missed, else 0."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the record to this file as well")
    path: Path | None = parser.parse_args().json
    where = environment()
    rows = measure()
    missed = [row for row in rows if row.held is False]
    _print(title, rows, where)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "schema": SCHEMA,
            "title": title,
            "environment": where,
            "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
            "held": not missed,
        }
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 1 if missed else 0


def environment() -> dict[str, Any]:
    """What the figures depend on, as it was before measuring."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "huge_pages": {
            name: _chosen(Path("/sys/kernel/mm/transparent_hugepage", name)) for name in ("enabled", "shmem_enabled")
        },
    }


def _chosen(path: Path) -> str | None:
    """The word in brackets of ``always [madvise] never``."""
    return path.read_text("ascii").partition("[")[2].partition("]")[0] if path.exists() else None


def _print(title: str, rows: Sequence[Row], where: Mapping[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for header in ("what", "figure", "against", "ratio", "target", "judged", ""):
        table.add_column(
            header, justify="right" if header in ("figure", "ratio", "judged") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(
            escape(row.name),
            f"{_short(row.figure)} {row.unit}",
            "" if row.against_figure is None else f"{row.against}: {_short(row.against_figure)} {row.unit}",
            "" if row.ratio is None else f"{row.ratio:.3f}",
            row.target or "",
            "" if row.judged is None else _short(row.judged),
            {True: "[green]holds[/]", False: "[red]MISSED[/]", None: ""}[row.held],
        )
    console.print(table)
    console.print(
        f"Python {where['python']}, Linux {where['kernel']}, {where['cpus']} CPUs, huge pages: "
        + ", ".join(f"{name}={value}" for name, value in where["huge_pages"].items())
    )
    if where["load"] > BUSY:
        console.print(
            f"[yellow]The machine was not idle (load {where['load']:.1f}); targets are meant for an idle one.[/]"
        )
    console.print()


def _short(number: float) -> str:
    return f"{number:.0f}" if number == int(number) or abs(number) >= 1000 else f"{number:.3g}"
