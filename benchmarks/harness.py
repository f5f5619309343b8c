"""For the benchmarks of a checkout: the package's harness, and running one as a script.

``python benchmarks/NAME.py`` prints its table; `vmmcache bench NAME --with benchmarks` does the same beside others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from vmmcache.benchmarks.harness import QUICK_ROUNDS, ROUNDS, Row, best_in_turns, environment, mode, seconds
from vmmcache.cli._bench_table import console, show_environment, show_rows

__all__ = ["QUICK_ROUNDS", "ROUNDS", "Row", "best_in_turns", "mode", "run", "seconds"]


def run(title: str, measure: Callable[[], Sequence[Row]]) -> int:
    """Measure, print the table, write the record where ``--json PATH`` says so; 1 where a target was missed, else 0."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the record to this file as well")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs")
    arguments = parser.parse_args()
    mode.quick = arguments.quick
    where = environment()
    rows = [row.to_dict() for row in measure()]
    held = all(row["held"] is not False for row in rows)
    output = console()
    show_rows(output, title, rows)
    show_environment(output, where)
    path: Path | None = arguments.json
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"schema": 1, "title": title, "environment": where, "rows": rows, "held": held}
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0 if held else 1
