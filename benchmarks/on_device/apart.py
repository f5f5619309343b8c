"""Each question in a process of its own: a crash, a hang or a lost context ends one, and not the rest."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.on_device.children import run
from benchmarks.on_device.record import Context, Section

__all__ = ["Clock", "run_apart"]


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
        path = Path(folder) / "section.json"
        command = [sys.executable, "-m", "benchmarks.on_device.main", context.device, "--section", name]
        ends = time.monotonic() + given
        ended = run([*command, "--ends", f"{ends:.3f}", "--out", path], given, apart=True)
        seconds = round(time.perf_counter() - start, 3)
        written = json.loads(path.read_text("utf-8")) if path.exists() else None
    if ended.trouble is None and written is not None:
        return Section(**{**written, "seconds": seconds})
    # What it had found until then, if anything, and where it was.
    results = {**(written["results"] if written is not None else {}), "messages": ended.messages}
    last = ended.messages[-1] if ended.messages else "it said nothing"
    return Section(name, "failed", f"its process {ended.trouble}: {last}", seconds, results)
