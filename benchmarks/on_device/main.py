"""Asks everything of one device and writes the record. Started by ``benchmarks/hardware.py``.

With ``--section NAME`` one question is asked, in this process, and what came of it is written.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

from benchmarks.on_device.apart import Clock, run_apart
from benchmarks.on_device.record import Context, Section, record_of, run_section, write
from benchmarks.on_device.sections import ALL_S, SECTIONS

__all__ = ["main"]

BENCHMARKS: Final = Path(__file__).resolve().parent.parent


class TimeOver(BaseException):
    """Not an Exception: nobody on the way takes it for a refusal of the device's."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=ALL_S)
    parser.add_argument("--section", choices=SECTIONS)
    parser.add_argument("--ends", type=float, help="of a section: on the monotonic clock, which is the machine's")
    parser.add_argument("--only", action="append", choices=SECTIONS)
    arguments = parser.parse_args()
    # The library of this process is an emulated one, whatever else the machine has.
    emulated = os.environ.get("VMMEMU_PROFILE") if "VMMEMU_LIBRARY" in os.environ else None
    ends: float = arguments.ends or time.monotonic() + arguments.seconds
    context = Context(arguments.device, emulated, ends)
    if arguments.section is not None:
        return one(arguments.section, context, arguments.out)
    return everything(context, arguments.seconds, arguments.out, arguments.only or list(SECTIONS))


def everything(context: Context, seconds: float, out: Path | None, names: list[str]) -> int:
    """Ask one after the other, and write the record after each: whatever stops this loses one answer at most."""
    clock, sections, path = Clock(seconds), list[Section](), out
    record = record_of(context, sections, names)
    for place, name in enumerate(names):
        sections.append(run_apart(name, SECTIONS[name].limit_s, context, clock))
        print("\n".join(_lines(sections[-1])), flush=True)
        record = record_of(context, sections, names[place + 1 :])
        if path is None and (name == "probe" or record["complete"]):
            path = _path(context, sections[-1], record["date"])  # the probe knows the device's name
        if path is not None:
            write(path, record)
    print(f"{'EMULATED, says nothing of hardware: ' if context.emulated else ''}{path}")
    return 0 if record["ok"] else 1


def one(name: str, context: Context, out: Path) -> int:
    """Ask one question. Shortly before the time is over it is interrupted; where that does not help, it is seen where
    it hangs before its process is ended."""
    seconds = max(0.2, context.ends - time.monotonic())
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds - min(2.0, seconds / 8))
    signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, seconds - min(4.0, seconds / 4))
    results: dict[str, Any] = {}
    try:
        section = run_section(name, SECTIONS[name].ask, context, results)
    except BaseException as error:
        faulthandler.cancel_dump_traceback_later()
        results["traceback"] = traceback.format_exc().splitlines()
        write(out, asdict(Section(name, "failed", f"{type(error).__name__}: {error}", 0.0, results)))
        raise
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    write(out, asdict(section))
    return 0


def _over(number: int, frame: FrameType | None) -> None:
    raise TimeOver("it takes longer than it may")


def _path(context: Context, probed: Section, date: str) -> Path:
    if context.emulated is not None:
        return BENCHMARKS / "out" / f"hardware-emulated-{context.emulated}.json"
    name = str(probed.results.get("facts", {}).get("name") or context.device)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return BENCHMARKS / "records" / f"{slug}-{date[:10]}.json"


def _lines(section: Section) -> Iterator[str]:
    """What people see of a section: figures as they are, long lists left to the record."""
    yield f"{section.name}: {section.status} ({section.seconds:.1f} s)" + (
        f" {section.reason}" if section.reason else ""
    )
    if section.name == "probe":
        yield from (f"  {loss}" for loss in section.results.get("facts", {}).get("losses", ()))
        return
    for key, value in section.results.items():
        if isinstance(value, dict):
            yield f"  {key}: " + ", ".join(f"{name} {_short(part)}" for name, part in value.items())
        elif not isinstance(value, list):
            yield f"  {key}: {_short(value)}"
    for test in section.results.get("tests", ()):
        if test["outcome"] not in ("passed", "skipped"):
            yield f"  {test['name']}: {test['outcome']}"
    if section.status == "failed":
        for key in "traceback", "messages":
            yield from (f"    {line}" for line in section.results.get(key, ())[-12:])


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "/".join(_short(part) for part in value.values())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
