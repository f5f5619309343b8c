"""The record: one section for each question, so that a failure of one does not lose the rest."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from vmmcache.errors import VmmCacheError

__all__ = ["CheckFailed", "Context", "NotRun", "Section", "check", "record_of", "run_section"]

SCHEMA: Final = 1


class CheckFailed(RuntimeError):
    """What was promised is not so."""


class NotRun(RuntimeError):
    """The question cannot be asked here, and why."""


@dataclass(frozen=True, slots=True)
class Context:
    """Which device, and whether it is an emulated one."""

    device: str
    emulated: str | None
    """Name of the emulated profile."""

    def sized(self, nbytes: int) -> int:
        """Bytes to work with: fewer where the memory is the processor's."""
        return nbytes if self.emulated is None else max(1 << 21, nbytes >> 5)


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


def run_section(name: str, question: Callable[[Context, dict[str, Any]], None], context: Context) -> Section:
    """Ask. What the question has put into its results until it fails is kept."""
    results: dict[str, Any] = {}
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
    return Section(name, status, reason, round(time.perf_counter() - start, 3), results)


def record_of(context: Context, sections: Sequence[Section]) -> dict[str, Any]:
    """The JSON object."""
    return {
        "schema": SCHEMA,
        "title": "vmmcache on a device",
        "emulated": context.emulated,
        "device": context.device,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("vmmcache", "torch", "cuda-bindings", "hip-python")},
        },
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "ok": all(section.status != "failed" for section in sections),
        "sections": [asdict(section) for section in sections],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
