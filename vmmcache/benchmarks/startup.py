"""What it costs to start: ``import vmmcache``, and ``vmmcache probe`` on a machine without a GPU (B3).

What connectors' libraries take to load, which a probe does where it is asked to, is shown and not judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from vmmcache.benchmarks.harness import Row, best_in_turns, seconds

__all__ = ["TITLE", "measure"]

TITLE: Final = "Start-up (B3)"

IMPORT_MS: Final = 30.0
PROBE_S: Final = 0.3

# The command as it is installed beside this interpreter: what a person types.
COMMAND: Final = (str(Path(sys.executable).with_name("vmmcache")), "probe")


def measure() -> Sequence[Row]:
    """Import and probe, against an interpreter that does nothing."""
    report = json.loads(_run(*COMMAND, "--json"))
    libraries = [entry["name"] for entry in report["connectors"] if entry["status"] == "installed"]
    cases: dict[str, Callable[[], object]] = {
        "bare": lambda: _run(sys.executable, "-c", "pass"),
        "import": lambda: _run(sys.executable, "-c", "import vmmcache"),
        "probe": lambda: _run(*COMMAND),
    }
    if libraries:
        cases["connectors"] = lambda: _run(*COMMAND, "--connectors")
    best = best_in_turns({name: _timed(work) for name, work in cases.items()})
    bare, imported = best["bare"] * 1000, best["import"] * 1000
    above = imported - bare
    # With a GPU the probe asks it, and that takes what it takes.
    judge = not report["accelerator"]
    rows = [
        Row(
            "python -c 'import vmmcache'",
            imported,
            "ms",
            "python -c pass",
            bare,
            above,
            f"<= {IMPORT_MS:g} ms above",
            above <= IMPORT_MS,
        ),
        Row(
            "vmmcache probe",
            best["probe"],
            "s",
            "python -c pass",
            best["bare"],
            best["probe"],
            f"<= {PROBE_S:g} s without a GPU",
            best["probe"] <= PROBE_S if judge else None,
        ),
    ]
    if libraries:
        what = f"the same with --connectors, which loads {' and '.join(libraries)}"
        rows.append(Row(what, best["connectors"], "s", "python -c pass", best["bare"]))
    return rows


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    return lambda: seconds(work)


def _run(*command: str, **environment: str) -> str:
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ).stdout
