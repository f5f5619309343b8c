"""Tables of figures, for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["console", "show_environment", "show_rows"]

BUSY: Final = 1.2
"""Load of a machine that does more than measure: 1 may be what was there just before."""
_WIDTH: Final = 150


def console() -> Console:
    """Standard output: wide where it is no terminal, and nobody says how wide."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH, highlight=False)


def show_rows(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """One table; `rows` as `vmmcache.benchmarks.harness.Row.to_dict` gives them."""
    table = Table(title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for header in ("what", "figure", "against", "ratio", "target", "judged", ""):
        right = header in ("figure", "ratio", "judged")
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in rows:
        compared = row["against_figure"]
        table.add_row(
            escape(row["name"]),
            escape(f"{_short(row['figure'])} {row['unit']}"),
            "" if compared is None else escape(f"{row['against']}: {_short(compared)} {row['unit']}"),
            "" if row["ratio"] is None else f"{row['ratio']:.3f}",
            escape(row["target"] or ""),
            "" if row["judged"] is None else _short(row["judged"]),
            {True: "[green]holds[/]", False: "[red]MISSED[/]", None: ""}[row["held"]],
        )
    console.print(table)
    console.print()


def show_environment(console: Console, where: Mapping[str, Any]) -> None:
    """What the figures depend on, and a warning where they are of a busy machine."""
    pages = ", ".join(f"{name}={value}" for name, value in where["huge_pages"].items())
    console.print(f"Python {where['python']}, Linux {where['kernel']}, {where['cpus']} CPUs, huge pages: {pages}")
    if where["load"] > BUSY:
        console.print(
            f"[yellow]The machine was not idle (load {where['load']:.1f}); targets are meant for an idle one.[/]"
        )


def _short(number: float) -> str:
    return f"{number:.0f}" if number == int(number) or abs(number) >= 1000 else f"{number:.3g}"
