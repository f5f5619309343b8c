"""The process in which one benchmark measures: ``... -m vmmcache.cli._bench_child FILE quick|full``.

A process each: what one imports or leaves in memory is no burden on the next. Prints one JSON object a line: rounds
that are done, and at last the rows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from vmmcache.benchmarks.harness import Row, mode

__all__ = ["main"]


def main(file: str, how: str) -> None:
    """Measure, and say so on what was standard output; everybody else's prints go to standard error."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        mode.quick = how == "quick"
        mode.progress = lambda done, rounds: _say(answer, done=done, rounds=rounds)
        rows = _measure(Path(file))()
        _say(answer, rows=[row.to_dict() for row in rows])


def _measure(path: Path) -> Callable[[], Sequence[Row]]:
    spec = importlib.util.spec_from_file_location(f"vmmcache_bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    measure: Callable[[], Sequence[Row]] = module.measure
    return measure


def _say(answer: TextIO, **line: Any) -> None:
    print(json.dumps(line, allow_nan=False), file=answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
