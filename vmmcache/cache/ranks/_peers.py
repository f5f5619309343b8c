"""Processes of this machine: whether they still run. A store cannot say that of its clients.

A process is told by its number and the moment it was started, in the process namespace of this boot of the machine: a
number that was given out again is not taken for it, nor one of another container.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

from vmmcache.cache.ranks._combine import text_of
from vmmcache.cache.ranks._line import KeyValueStore

__all__ = ["Process", "here", "introduce", "neighbours"]

Condition = Literal["ended", "running", "stopped"]


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    started: int
    """Clock ticks after boot."""

    @property
    def condition(self) -> Condition:
        """What has become of it."""
        found = _stat(self.pid)
        if found is None or found[1] != self.started or found[0] in "ZX":
            return "ended"
        return "stopped" if found[0] in "Tt" else "running"

    def __str__(self) -> str:
        return f"process {self.pid}"


class Here(NamedTuple):
    """This process, and a name of its machine that is good for telling whether another is on it."""

    machine: str
    process: Process


def here() -> Here | None:
    """Where this is; None where there is no /proc to look into."""
    pid = os.getpid()
    found = _stat(pid)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None
    return None if found is None else Here(f"machine/{boot}/{namespace}", Process(pid, found[1]))


def introduce(store: KeyValueStore, rank: int, place: Here | None) -> None:
    """Leave a card for the ranks of the same machine."""
    if place is not None:
        number = store.add(place.machine, 1)
        store.set(f"{place.machine}/{number}", text_of([rank, *place.process]))


def neighbours(store: KeyValueStore, place: Here | None) -> dict[int, Process]:
    """The other processes of this machine that have left a card, by rank."""
    if place is None:
        return {}
    number = store.add(place.machine, 0)
    cards = map(json.loads, store.multi_get([f"{place.machine}/{index + 1}" for index in range(number)]))
    found = {rank: Process(pid, started) for rank, pid, started in cards if pid != place.process.pid}
    # One that cannot be seen now (another user's, where those are hidden) would always look as if it had ended.
    return {rank: process for rank, process in found.items() if process.condition != "ended"}


def _stat(pid: int) -> tuple[str, int] | None:
    """State and moment of start, from a line such as ``12 (any (name) ) S 1 ...``; None for no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])
