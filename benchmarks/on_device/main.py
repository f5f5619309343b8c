"""Asks everything of one device and writes the record. Started by ``benchmarks/hardware.py``.

With ``--section NAME`` one question is asked, in this process, and what came of it is written.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.on_device.apart import Clock, run_apart
from benchmarks.on_device.record import Context, Section, record_of, run_section
from benchmarks.on_device.sections import ALL_S, SECTIONS

__all__ = ["main"]

BENCHMARKS: Final = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--section", choices=SECTIONS)
    arguments = parser.parse_args()
    # The library of this process is an emulated one, whatever else the machine has.
    emulated = os.environ.get("VMMEMU_PROFILE") if "VMMEMU_LIBRARY" in os.environ else None
    context = Context(arguments.device, emulated)
    if arguments.section is not None:
        section = run_section(arguments.section, SECTIONS[arguments.section].ask, context)
        arguments.out.write_text(json.dumps(asdict(section)), encoding="utf-8")
        return 0
    sections = []
    clock = Clock(ALL_S)
    for name, question in SECTIONS.items():
        sections.append(run_apart(name, question.limit_s, context, clock))
        print("\n".join(_lines(sections[-1])), flush=True)
    record = record_of(context, sections)
    path: Path = arguments.out or _path(context, sections[0], record["date"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"{'EMULATED, says nothing of hardware: ' if emulated else ''}{path}")
    return 0 if record["ok"] else 1


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
        return
    for key, value in section.results.items():
        if isinstance(value, dict):
            yield f"  {key}: " + ", ".join(f"{name} {_short(part)}" for name, part in value.items())
        elif not isinstance(value, list):
            yield f"  {key}: {_short(value)}"
    for test in section.results.get("tests", ()):
        if test["outcome"] not in ("passed", "skipped"):
            yield f"  {test['name']}: {test['outcome']}"


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "/".join(_short(part) for part in value.values())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
