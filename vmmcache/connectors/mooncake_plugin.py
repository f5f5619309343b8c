"""The door of Mooncake's connector: what `vmmcache.connectors.mooncake` needs and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vmmcache.connectors.needs import ConnectorNeeds
from vmmcache.connectors.spec import ConnectorSpec
from vmmcache.errors import ConnectorUnavailable
from vmmcache.plugins.hookspecs import hookimpl

__all__ = ["NEEDS", "vmmcache_connectors"]

NEEDS: Final = ConnectorNeeds(one_device=True)


def _open(**options: Any) -> Any:
    # Here, so that finding drivers does not wait for what only a transfer needs.
    from vmmcache.connectors.mooncake import MooncakeConnector

    return MooncakeConnector(**options)


def _reason() -> tuple[str, str] | None:
    from vmmcache.connectors.mooncake import load

    try:
        load()
    except ConnectorUnavailable as error:
        return error.reason, error.cure
    return None


@hookimpl
def vmmcache_connectors() -> Iterator[ConnectorSpec]:
    """Yield Mooncake's connector."""
    yield ConnectorSpec("mooncake", open=_open, needs=NEEDS, reason=_reason, modules=("mooncake",))
