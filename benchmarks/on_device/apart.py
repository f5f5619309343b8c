"""Each question in a process of its own: a crash, a hang or a lost context ends one, and not the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.on_device.record import Context, Section

__all__ = ["Clock", "run_apart"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LINES: Final = 40


class Clock:
    """What is left of the time that all questions have together."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds; less than 0 when it is over."""
        return self._end - time.monotonic()


def run_apart(name: str, limit_s: float, context: Context, clock: Clock) -> Section:
    """Ask in a child process, which has so many seconds and no more than the clock has left."""
    given = min(limit_s, clock.left)
    if given <= 0:
        return Section(name, "not run", "the time for all sections is over", 0.0, {})
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "section.json", Path(folder) / "stderr"
        with said.open("wb") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.on_device.main", context.device, "--section", name, "--out", path],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
            reason = _ended(child, given)
        seconds = round(time.perf_counter() - start, 3)
        if path.exists():
            return Section(**{**json.loads(path.read_text("utf-8")), "seconds": seconds})
        messages: dict[str, Any] = {"messages": said.read_text("utf-8", "replace").splitlines()[-LINES:]}
    last = messages["messages"][-1] if messages["messages"] else "it said nothing"
    return Section(name, "failed", f"{reason}: {last}", seconds, messages)


def _ended(child: subprocess.Popen[bytes], limit_s: float) -> str:
    """Wait for a child, and say how it ended. What it has started ends with it."""
    try:
        status = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # it leads a group of its own
        child.wait()
        return f"its process had not ended after {limit_s:.0f} s"
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"
