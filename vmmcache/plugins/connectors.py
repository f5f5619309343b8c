"""Finding connectors, as `host` finds drivers: through the same door, in the same quarantine, with nothing hidden."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from vmmcache.connectors.spec import ConnectorSpec
from vmmcache.errors import ConfigError, ConnectorError, ConnectorUnavailable
from vmmcache.plugins import hookspecs
from vmmcache.plugins.host import CURE, Door, take_in

if TYPE_CHECKING:
    from vmmcache.connectors.base import Connector

__all__ = ["BrokenConnector", "FoundConnector", "connectors", "find_connector", "open_connector"]

DISABLE: Final = "VMMCACHE_DISABLE_CONNECTORS"


@dataclass(frozen=True, slots=True)
class FoundConnector:
    """A connector that a plug-in provides. Whether its library works on this machine is for `open_connector` to say."""

    name: str
    origin: str
    """Distribution and version that it comes from."""
    spec: ConnectorSpec
    error: None = None


@dataclass(frozen=True, slots=True)
class BrokenConnector:
    """A plug-in of connectors, or one connector of it, that could not be taken in."""

    name: str
    origin: str
    error: str
    """Why, for people."""
    cure: str = CURE
    """What an operator can do about it."""


_CONNECTORS: Final = Door("vmmcache_connectors", ConnectorSpec, FoundConnector, BrokenConnector, DISABLE)


def connectors() -> dict[str, FoundConnector | BrokenConnector]:
    """Find every connector that is installed, without loading a library. Keys are those of `drivers`.

    A plug-in that cannot even be imported is listed among the drivers as well: what it was to provide, nobody knows.
    """
    return take_in(entry_points(group=hookspecs.GROUP), _CONNECTORS)


def open_connector(name: str, **options: Any) -> Connector:
    """Open a connector by its name, for example ``"nixl"``. Each call opens another agent.

    Parameters
    ----------
    name : str
    **options
        What the connector takes; see docs/connectors.md.

    Raises
    ------
    ConfigError
        `name` is no string, or an option is wrong.
    ConnectorUnavailable
        No connector of that name is installed, or it is broken, or its library is missing or refuses; with reason and
        cure.
    """
    from vmmcache.connectors.base import Connector  # here: a probe lists connectors, and opens none

    connector = find_connector(name).spec.open(**options)
    if not isinstance(connector, Connector):
        raise ConnectorError(f"open() gave a {type(connector).__name__}, not a Connector", connector=name, call="open")
    return connector


def find_connector(name: str) -> FoundConnector:
    """The connector of that name, or ConnectorUnavailable that says what is installed, or what is broken."""
    if not isinstance(name, str):
        raise ConfigError("connector", name, 'a name such as "nixl"')
    known = connectors()
    record = known.get(name)
    if isinstance(record, FoundConnector):
        return record
    if record is not None:
        disabled = record.error == f"disabled by {DISABLE}"
        reason = record.error if disabled else f"the plug-in of {record.origin} is broken: {record.error}"
        raise ConnectorUnavailable(reason, cure=record.cure, connector=name)
    found = ", ".join(key for key, value in known.items() if isinstance(value, FoundConnector)) or "none"
    raise ConnectorUnavailable(
        f"no connector of that name is installed (installed: {found})",
        cure="Check the spelling, or install the distribution that provides it",
        connector=name,
    )
