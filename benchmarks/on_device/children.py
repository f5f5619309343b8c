"""Programs that are started here: how they ended and what they said, also where they had to be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["ROOT", "Ended", "run"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LINES: Final = 60


class Ended(NamedTuple):
    """What became of a program."""

    trouble: str | None
    """None where it ended with status 0, else how it ended."""
    stdout: str
    stderr: str

    @property
    def messages(self) -> list[str]:
        """The last lines of what it said: standard output, then standard error."""
        return [line for text in (self.stdout, self.stderr) for line in text.splitlines()[-LINES:]]


def run(
    command: Sequence[str | Path], limit_s: float, env: Mapping[str, str] | None = None, *, apart: bool = False
) -> Ended:
    """Run a program in the checkout, for so many seconds at most.

    What it says goes to files: of a program that has to be stopped, everything until then is still there. With `apart`
    it leads a group of processes, which ends with it; without, it ends with the group of this process.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=None if env is None else {**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            # A group, not a session: whoever ends everything that was started from here ends this too.
            process_group=0 if apart else None,
        )
        try:
            trouble = _trouble(child.wait(limit_s))
        except subprocess.TimeoutExpired:
            trouble = f"had not ended after {limit_s:.0f} s"
        finally:
            # Also where this process has to stop meanwhile.
            if apart:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            child.wait()
        said = []
        for file in out, errors:
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return Ended(trouble, *said)


def _trouble(status: int) -> str | None:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}" if status else None
