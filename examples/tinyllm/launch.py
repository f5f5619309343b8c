"""Starting several ranks, each a process of its own, and hearing how each of them ended. Needs no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["GONE", "Place", "run_ranks"]

GONE: Final = "RankEnded"
"""Type of the error of a rank that ended without a word."""
_VARIABLE: Final = "TINYLLM_RANK"
_GRACE_S: Final = 60.0
"""Seconds between the end of the first rank that fails and that of the last one, beyond the timeout of an exchange."""


class Place(NamedTuple):
    """Which rank a process is, of how many, and the file through which they find each other."""

    rank: int
    ranks: int
    store: str

    @classmethod
    def of_this_process(cls) -> Place | None:
        """This process's own, where `run_ranks` has started it."""
        value = os.environ.get(_VARIABLE)
        if value is None:
            return None
        rank, ranks, store = value.split("/", 2)
        return cls(int(rank), int(ranks), store)


def run_ranks(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], timeout_s: float
) -> list[dict[str, Any]]:
    """Run a command once for each rank, and give what each printed: one JSON object, or how it ended instead.

    Parameters
    ----------
    command
        Arguments for this Python.
    environments
        What each rank has beside this process's environment.
    timeout_s
        Longest that a rank waits for the others in one exchange. When one has failed, the others have that long and a
        little more to notice; one that does not is ended.
    """
    with tempfile.TemporaryDirectory(prefix="tinyllm-") as folder:
        ranks = []
        for rank, own in enumerate(environments):
            place = f"{rank}/{len(environments)}/{folder}/store"
            # A file, not a pipe: nobody has to read it for the rank to go on.
            with open(f"{folder}/{rank}.json", "wb") as out:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, *command], stdout=out, env={**os.environ, **own, _VARIABLE: place}
                    )
                )
        late: list[int] = []
        try:
            late = _late(ranks, timeout_s)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        printed = [Path(folder, f"{rank}.json").read_text("utf-8") for rank in range(len(ranks))]
    return [
        _ending(process, text, late=rank in late)
        for rank, (process, text) in enumerate(zip(ranks, printed, strict=True))
    ]


def _late(ranks: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> list[int]:
    """Wait until all have ended, or until so long after the first failure; give those that have not ended then."""
    deadline = None
    while late := [rank for rank, process in enumerate(ranks) if process.poll() is None]:
        if deadline is None and any(process.poll() for process in ranks):
            deadline = time.monotonic() + timeout_s + _GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return late


def _ending(process: subprocess.Popen[bytes], text: str, *, late: bool) -> dict[str, Any]:
    if text:
        said: dict[str, Any] = json.loads(text)
        return said
    status = process.returncode
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status} and said nothing"
    if late:
        how = "did not notice that another rank had failed, and was ended"
    return {"error": {"type": GONE, "message": how}}
