"""The door of NIXL's connector: what `vmmcache.connectors.nixl` needs and how it is opened, without loading it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vmmcache.connectors.needs import ConnectorNeeds
from vmmcache.connectors.spec import ConnectorSpec
from vmmcache.errors import ConnectorUnavailable
from vmmcache.plugins.hookspecs import hookimpl

__all__ = ["MODULES", "NEEDS", "vmmcache_connectors"]

MODULES: Final = ("nixl_cu13", "nixl_cu12")
"""The wheels. The distribution `nixl` itself only chooses one of them."""
NEEDS: Final = ConnectorNeeds(one_device=True)


def _open(**options: Any) -> Any:
    # Here, so that finding drivers does not wait for what only a transfer needs.
    from vmmcache.connectors.nixl import NixlConnector

    return NixlConnector(**options)


def _reason() -> tuple[str, str] | None:
    from vmmcache.connectors.nixl_library import load

    try:
        load()
    except ConnectorUnavailable as error:
        return error.reason, error.cure
    return None


@hookimpl
def vmmcache_connectors() -> Iterator[ConnectorSpec]:
    """Yield NIXL's connector."""
    yield ConnectorSpec("nixl", open=_open, needs=NEEDS, reason=_reason, modules=MODULES)
