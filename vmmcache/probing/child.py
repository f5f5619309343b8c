"""The process in which one driver is probed: ``python -m vmmcache.probing.child NAME``. Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from vmmcache.plugins.host import FoundDriver, load_driver
from vmmcache.probing.steps import device_report
from vmmcache.spec import Step

__all__ = ["main"]


def main(name: str) -> dict[str, Any]:
    """Survey one driver, then ask everything of each of its devices."""
    found = load_driver(name)
    if not isinstance(found, FoundDriver):
        raise SystemExit(f"{name} is broken: {found.error}")
    survey = found.spec.survey()
    usable = all(step.ok for step in survey.steps)
    devices = [device_report(found.spec, *entry, survey.quirks) for entry in enumerate(survey.devices) if usable]
    return {
        "library": {"path": survey.library_path, "version": survey.library_version},
        "devices": devices,
        "steps": survey.steps,
    }


def _step_as_dict(value: object) -> dict[str, Any]:
    if not isinstance(value, Step):
        raise TypeError(f"{value!r} in a probe's report")
    return asdict(value)


if __name__ == "__main__":
    # Vendors' libraries write to standard output as they please; what they write goes to standard error.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        json.dump(main(sys.argv[1]), answer, default=_step_as_dict)
