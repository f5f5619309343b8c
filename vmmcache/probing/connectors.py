"""Asks every connector whether its library is here; where that is wanted, in a child process whether it can be loaded.

Loading one takes longer than everything else that a probe does, so it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from vmmcache.errors import DriverUnavailable
from vmmcache.plugins.connectors import BrokenConnector, FoundConnector, connectors
from vmmcache.plugins.host import OURS, BrokenDriver, FoundDriver
from vmmcache.probing.process import ProbeProcess

__all__ = ["ConnectorProbe"]


class ConnectorProbe:
    """Starts at once; `finish` waits for the answers.

    Parameters
    ----------
    listed : iterable of FoundDriver or BrokenDriver
        What the report lists already: a plug-in that nobody can import is broken once, and not once more here.
    load : bool
        Whether libraries are loaded.
    """

    def __init__(self, listed: Iterable[FoundDriver | BrokenDriver], *, load: bool) -> None:
        broken = {(each.name, each.origin, each.error) for each in listed}
        self._known = {
            key: record
            for key, record in connectors().items()
            if isinstance(record, FoundConnector) or (record.name, record.origin, record.error) not in broken
        }
        self._children = {
            key: ProbeProcess(key, "connector")
            for key, record in self._known.items()
            if load and isinstance(record, FoundConnector)
        }

    def stop(self) -> None:
        """End what nobody waits for any more."""
        for child in self._children.values():
            child.stop()

    def finish(self, timeout_s: float, longer: str) -> list[dict[str, Any]]:
        """One entry of the report for each connector; `longer` names the variable that gives them longer."""
        deadline = time.monotonic() + timeout_s
        return [
            _entry(record, "broken", record.error, record.cure)
            if isinstance(record, BrokenConnector)
            else self._answer(key, record, deadline, timeout_s, longer)
            if key in self._children
            else _listed(record)
            for key, record in self._known.items()
        ]

    def _answer(
        self, key: str, record: FoundConnector, deadline: float, timeout_s: float, longer: str
    ) -> dict[str, Any]:
        try:
            answer = self._children[key].finish(deadline, timeout_s, longer)
        except DriverUnavailable as error:
            return _entry(record, "unavailable", error.reason, error.cure)
        return _entry(record, "unavailable" if answer["reason"] else "ok", answer["reason"], answer["cure"])


def _listed(record: FoundConnector) -> dict[str, Any]:
    """An answer without loading anything."""
    modules = record.spec.modules
    if not modules or any(find_spec(module) for module in modules):
        return _entry(record, "installed", None, None)
    reason = f"its library is not installed: there is no Python package {' or '.join(modules)}"
    ours = record.origin.startswith(f"{OURS} ")
    cure = f"`pip install '{OURS}[{record.name}]'`" if ours else f"Install what {record.origin} asks for"
    return _entry(record, "unavailable", reason, cure)


def _entry(
    record: FoundConnector | BrokenConnector, status: str, reason: str | None, cure: str | None
) -> dict[str, Any]:
    rules = record.spec.needs.rules() if isinstance(record, FoundConnector) else ()
    return {
        "name": record.name,
        "origin": record.origin,
        "status": status,
        "reason": reason,
        "cure": cure,
        "needs": [{"rule": rule, "what": what} for rule, what in rules],
    }
