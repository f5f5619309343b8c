"""The plug-in: what vmmcache imports to learn that there is a connector, long before anybody wants to use it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from vmmcache import Connector, ConnectorNeeds, ConnectorSpec, hookimpl

NEEDS = ConnectorNeeds(memory=frozenset({"DRAM"}), one_device=True)


def _open(**options: Any) -> Connector:
    # Imported here and not above: to learn that there is a connector must not load what it needs to run.
    from vmmcache_cma._connector import CmaConnector

    return CmaConnector(**options)


def _reason() -> tuple[str, str] | None:
    """Say why it cannot be used here, and what helps; called in a probe's child process only."""
    if sys.platform != "linux":
        return f"{sys.platform} does not copy between processes", "Use Linux"
    return None


@hookimpl
def vmmcache_connectors() -> Iterator[ConnectorSpec]:
    """Yield the connector."""
    yield ConnectorSpec("cma", open=_open, needs=NEEDS, reason=_reason)
