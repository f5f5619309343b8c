"""What it costs to start: ``import vmmcache``, and ``vmmcache probe`` on a machine without a GPU (B3)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vmmcache.benchmarks.harness import Row, best_in_turns, seconds

__all__ = ["TITLE", "measure"]

TITLE: Final = "Start-up (B3)"

IMPORT_MS: Final = 30.0
PROBE_S: Final = 0.3

# The command as it is installed beside this interpreter: what a person types.
COMMAND: Final = [str(Path(sys.executable).with_name("vmmcache")), "probe"]


def measure() -> Sequence[Row]:
    """Import and probe, against an interpreter that does nothing."""
    best = best_in_turns(
        {
            "bare": lambda: seconds(lambda: _call([sys.executable, "-c", "pass"])),
            "import": lambda: seconds(lambda: _call([sys.executable, "-c", "import vmmcache"])),
            "probe": lambda: seconds(lambda: _call(COMMAND)),
        }
    )
    bare, imported = best["bare"] * 1000, best["import"] * 1000
    above = imported - bare
    # With a GPU the probe asks it, and that takes what it takes.
    judge = not json.loads(_call([*COMMAND, "--json"]))["accelerator"]
    return (
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
    )


def _call(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
