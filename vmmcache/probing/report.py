"""Runs the probe's child processes and makes one report of what they say."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from vmmcache.errors import ConfigError, DriverUnavailable
from vmmcache.plugins.host import BrokenDriver, FoundDriver, drivers, find_driver, split_device
from vmmcache.probing.connectors import ConnectorProbe
from vmmcache.probing.process import ProbeProcess
from vmmcache.spec import ProbeReport, Step

__all__ = ["Choice", "best_device", "probe", "probe_all", "vmm_unavailable_reason"]

SCHEMA: Final = 1
TIMEOUT: Final = "VMMCACHE_PROBE_TIMEOUT_S"
_DEFAULT_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A device, and the sentence that says why this one."""

    device: str
    why: str


def probe(device: str) -> ProbeReport:
    """Ask whether a device can do what vmmcache needs.

    Runs in a child process: this process neither loads a vendor's library nor initialises a device, and a library that
    crashes or hangs is a reason like any other.

    Raises
    ------
    ConfigError
        `device` is not a device string. Everything else, also a driver that is not installed, is an answer.
    """
    name, index = split_device(device)
    try:
        record = find_driver(name)
    except DriverUnavailable as error:
        return _answer(device, name, reason=error.reason, cure=error.cure)
    (entry,) = _ask({name: record}, _timeout())
    found = next((one for one in entry["devices"] if one["index"] == index), None)
    steps = tuple(Step(**step) for step in (*entry["steps"], *(found["steps"] if found else ())))
    if found is not None:
        return _answer(device, name, reason=found["reason"], cure=found["cure"], steps=steps, found=found)
    if number := len(entry["devices"]):
        reason, cure = f"there is no device {index}; {name} has {number}", _index_cure(number)
        return _answer(device, name, reason=reason, cure=cure, steps=steps)
    return _answer(device, name, reason=entry["reason"], cure=entry["cure"], steps=steps)


def vmm_unavailable_reason(device: str) -> str | None:
    """Why a device cannot be used, or None where it can. For engines; safe before anything has touched the device."""
    return probe(device).reason


def best_device() -> Choice:
    """The first accelerator that works, else the host, with the reason for the choice."""
    report = probe_all(connectors=False)
    if report["selected"] is None:
        raise DriverUnavailable("no driver works here", cure="`vmmcache probe` says why", driver="any", call="probe")
    if report["accelerator"]:
        return Choice(report["selected"], "it is the first accelerator on which virtual memory management works")
    reasons = "; ".join(f"{entry['name']}: {entry['reason']}" for entry in report["drivers"] if entry["reason"])
    return Choice(report["selected"], f"no accelerator can be used ({reasons or 'no driver for one is installed'})")


def probe_all(only: str | None = None, *, connectors: bool | None = None) -> dict[str, Any]:
    """Probe every driver, or the one called `only`, each in a child process, all at once.

    Where no driver is named, connectors are listed, and asked in a child process each whether their library can be
    loaded where `connectors` is True; False leaves them out.

    Returns
    -------
    dict
        The object that ``vmmcache probe --json`` prints.
    """
    known = {key: record for key, record in drivers().items() if only is None or record.name == only}
    timeout_s = _timeout()
    with ExitStack() as stack:
        others = None
        if connectors is not False and only is None:
            others = ConnectorProbe(known.values(), load=connectors is True)
            stack.callback(others.stop)
        entries = _ask(known, timeout_s)
        libraries = others.finish(timeout_s, TIMEOUT) if others is not None else []
    accelerators = {
        record.name for record in known.values() if isinstance(record, FoundDriver) and record.spec.accelerator
    }
    usable = sorted(
        (entry["name"] not in accelerators, place, device["device"])
        for place, entry in enumerate(entries)
        for device in entry["devices"]
        if device["vmm"]
    )
    selected = usable[0] if usable else (True, 0, None)
    return {
        "schema": SCHEMA,
        "drivers": entries,
        "connectors": libraries,
        "selected": selected[2],
        "accelerator": not selected[0],
    }


def _ask(known: Mapping[str, FoundDriver | BrokenDriver], timeout_s: float) -> list[dict[str, Any]]:
    """Entries of the report, one for each driver, in their order."""
    children = {}
    with ExitStack() as stack:
        for key, record in known.items():
            if isinstance(record, FoundDriver):
                children[key] = ProbeProcess(key)
                stack.callback(children[key].stop)
        deadline = time.monotonic() + timeout_s
        return [
            _finish(record, children[key], deadline, timeout_s)
            if isinstance(record, FoundDriver)
            else _entry(record, "broken", record.error, record.cure)
            for key, record in known.items()
        ]


def _finish(record: FoundDriver, child: ProbeProcess, deadline: float, timeout_s: float) -> dict[str, Any]:
    try:
        answer = child.finish(deadline, timeout_s, TIMEOUT)
    except DriverUnavailable as error:
        return _entry(record, "unavailable", error.reason, error.cure)
    if any(device["vmm"] for device in answer["devices"]):
        return _entry(record, "ok", None, None) | answer
    no = next((part for part in (*answer["steps"], *answer["devices"]) if part["reason"]), None)
    if no is None:
        no = {"reason": "the library finds no device", "cure": "Check that one is visible here"}
    return _entry(record, "unavailable", no["reason"], no["cure"]) | answer


def _entry(record: FoundDriver | BrokenDriver, status: str, reason: str | None, cure: str | None) -> dict[str, Any]:
    return {
        "name": record.name,
        "origin": record.origin,
        "status": status,
        "reason": reason,
        "cure": cure,
        "library": {"path": None, "version": None},
        "devices": [],
        "steps": [],
    }


def _answer(
    device: str,
    driver: str,
    *,
    reason: str | None,
    cure: str | None,
    steps: tuple[Step, ...] = (),
    found: dict[str, Any] | None = None,
) -> ProbeReport:
    found = found or {}
    own = ("vmm", "reason", "cure", "granule", "steps")
    return ProbeReport(
        ok=found.get("vmm", False),
        driver=driver,
        device=device,
        reason=reason,
        cure=cure,
        granule=found.get("granule"),
        steps=steps,
        facts={key: value for key, value in found.items() if key not in own},
    )


def _index_cure(number: int) -> str:
    return "Use index 0" if number == 1 else f"Use an index from 0 to {number - 1}"


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "")
    if not text:
        return _DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(TIMEOUT, text, "must be a positive number of seconds")
    return seconds
