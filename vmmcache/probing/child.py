"""The process in which one driver, or connector, is probed. Prints one JSON object.

``python -m vmmcache.probing.child NAME driver``, or ``connector``.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from vmmcache.plugins.host import FoundDriver, load_driver
from vmmcache.probing.steps import device_report
from vmmcache.spec import Step

__all__ = ["connector", "main"]


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


def connector(name: str) -> dict[str, Any]:
    """Ask one connector why it cannot be opened here."""
    from vmmcache.plugins.connectors import FoundConnector, connectors  # here: a driver's child has no time to lose

    found = connectors()[name]
    if not isinstance(found, FoundConnector):
        raise SystemExit(f"{name} is broken: {found.error}")
    match found.spec.reason():
        case None:
            return {"reason": None, "cure": None}
        case str(reason), str(cure):
            return {"reason": reason, "cure": cure}
        case other:
            raise SystemExit(f"reason() gave {other!r}, and not a reason and a cure, or None")


def _step_as_dict(value: object) -> dict[str, Any]:
    if not isinstance(value, Step):
        raise TypeError(f"{value!r} in a probe's report")
    return asdict(value)


if __name__ == "__main__":
    # Vendors' libraries write to standard output as they please; what they write goes to standard error.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        ask = connector if sys.argv[2:] == ["connector"] else main
        json.dump(ask(sys.argv[1]), answer, default=_step_as_dict)
