"""The record: one section for each question, so that a failure of one does not lose the rest."""

from __future__ import annotations

import json
import math
import os
import platform
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from vmmcache.errors import VmmCacheError

__all__ = ["CheckFailed", "Context", "NotRun", "Section", "check", "record_of", "run_section", "write"]

SCHEMA: Final = 1
PACKAGES: Final = ("vmmcache", "torch", "numpy", "cuda-bindings", "hip-python", "pytest", "hypothesis", "pluggy")
SPARE_S: Final = 6.0
"""Seconds that a section keeps for saying what it has found, of those that it was given."""


class CheckFailed(RuntimeError):
    """What was promised is not so."""


class NotRun(RuntimeError):
    """The question cannot be asked here, and why."""


@dataclass(frozen=True, slots=True)
class Context:
    """Which device, whether it is an emulated one, and until when there is time."""

    device: str
    emulated: str | None
    """Name of the emulated profile."""
    ends: float = math.inf
    """On the monotonic clock."""

    def sized(self, nbytes: int) -> int:
        """Bytes to work with: fewer where the memory is the processor's."""
        return nbytes if self.emulated is None else max(1 << 21, nbytes >> 5)

    @property
    def left(self) -> float:
        """Seconds that a program may run which is started now; the rest is for telling what it said."""
        return max(1.0, min(self.ends - time.monotonic() - SPARE_S, 3600.0))


@dataclass(frozen=True, slots=True)
class Section:
    """One question and what came of it."""

    name: str
    status: Literal["passed", "failed", "not run"]
    reason: str | None
    """Why it failed or did not run."""
    seconds: float
    results: dict[str, Any]


def check(condition: bool, what: str) -> None:
    """Raise CheckFailed unless it holds."""
    if not condition:
        raise CheckFailed(what)


def run_section(
    name: str,
    question: Callable[[Context, dict[str, Any]], None],
    context: Context,
    results: dict[str, Any] | None = None,
) -> Section:
    """Ask. What the question has put into its results until it fails is kept, and where it failed."""
    results = {} if results is None else results
    start = time.perf_counter()
    status: Literal["passed", "failed", "not run"] = "passed"
    reason = None
    try:
        question(context, results)
    except NotRun as why:
        status, reason = "not run", str(why)
    except (VmmCacheError, RuntimeError) as error:
        # torch raises RuntimeError for all that goes wrong on a device.
        status, reason = "failed", f"{type(error).__name__}: {error}"
        results["traceback"] = traceback.format_exc().splitlines()
    return Section(name, status, reason, round(time.perf_counter() - start, 3), results)


def record_of(context: Context, sections: Sequence[Section], waiting: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object. Sections that are `waiting` are in it as well: whoever finds it knows what is missing."""
    asked = [*sections, *(Section(name, "not run", "it was not reached", 0.0, {}) for name in waiting)]
    return {
        "schema": SCHEMA,
        "title": "vmmcache on a device",
        "emulated": context.emulated,
        "device": context.device,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "complete": not waiting,
        "ok": not waiting and all(section.status != "failed" for section in sections),
        "sections": [asdict(section) for section in asked],
    }


def write(path: Path, value: object) -> None:
    """Write JSON, whole or not at all: whoever is stopped meanwhile leaves what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=2, default=str) + "\n", encoding="utf-8")
    beside.replace(path)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
