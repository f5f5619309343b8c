"""What every benchmark shares: measuring in turns, a figure beside what it is compared with, and what it depends on.

A figure is the best of its rounds: noise on a machine only ever adds time. Cases that are compared take turns, so that
what slows the machine for a while slows all of them.

A benchmark is a module with a function ``measure() -> Sequence[Row]``, and these constants, where they are wanted:
``TITLE``, by default the first sentence of its docstring, and ``NEEDS``, names of packages without which it cannot run.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["QUICK_ROUNDS", "ROUNDS", "Mode", "Row", "best_in_turns", "environment", "mode", "seconds"]

ROUNDS: Final = 9
QUICK_ROUNDS: Final = 3


@dataclass(slots=True)
class Mode:
    """How this process measures."""

    quick: bool = False
    """Fewer rounds and less memory: to see that it runs. Its figures are rough."""
    progress: Callable[[int, int], None] | None = None
    """Told of rounds that are done, and of how many there are, before each measurement."""


mode: Final = Mode()


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, what it is compared with, and what it has to be."""

    name: str
    figure: float
    unit: str
    against: str | None = None
    """What the figure is compared with."""
    against_figure: float | None = None
    """In the same unit."""
    judged: float | None = None
    """The number that the target speaks of: a ratio, a difference, or the figure itself."""
    target: str | None = None
    """In words; None for a figure that is only shown."""
    held: bool | None = None

    @property
    def ratio(self) -> float | None:
        """The figure in terms of what it is compared with."""
        return self.figure / self.against_figure if self.against_figure else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"ratio": self.ratio}


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Wall time of one call, or what `clock` says, with the garbage collector held back."""
    gc.collect()
    gc.disable()
    try:
        start = clock()
        work()
        return clock() - start
    finally:
        gc.enable()


def best_in_turns(cases: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """The least that each case returns over `rounds`; the order turns round from one round to the next."""
    if mode.quick:
        rounds = min(rounds, QUICK_ROUNDS)
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for place, name in enumerate(list(cases)[:: -1 if number % 2 else 1]):
            if mode.progress is not None:
                mode.progress(number * len(cases) + place, rounds * len(cases))
            figures[name].append(cases[name]())
    return {name: min(values) for name, values in figures.items()}


def environment() -> dict[str, Any]:
    """What the figures depend on, as it is now: ask before measuring."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "huge_pages": {
            name: _chosen(Path("/sys/kernel/mm/transparent_hugepage", name)) for name in ("enabled", "shmem_enabled")
        },
    }


def _chosen(path: Path) -> str | None:
    """The word in brackets of ``always [madvise] never``."""
    return path.read_text("ascii").partition("[")[2].partition("]")[0] if path.exists() else None
