"""Every benchmark of this folder in turn; JSON in ``benchmarks/out``. Exit status 1 where a target was missed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_BENCHMARKS = {"run.py", "harness.py", "hardware.py"}


def main() -> int:
    missed = []
    for script in sorted(HERE.glob("*.py")):
        if script.name in NOT_BENCHMARKS:
            continue
        # A process each: what one imports or leaves in memory is no burden on the next.
        command = [sys.executable, str(script), "--json", str(HERE / "out" / f"{script.stem}.json")]
        if subprocess.run(command, check=False).returncode:
            missed.append(script.stem)
    print(f"missed a target: {', '.join(missed)}" if missed else "every target holds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
