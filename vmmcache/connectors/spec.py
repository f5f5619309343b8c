"""What a plug-in hands over: a connector's name, how to open it, what it needs, and why it cannot be opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vmmcache.connectors.needs import ConnectorNeeds
from vmmcache.errors import ConfigError

if TYPE_CHECKING:
    from vmmcache.connectors.base import Connector

__all__ = ["ConnectorSpec"]


@dataclass(frozen=True, slots=True)
class ConnectorSpec:
    """One connector that a plug-in provides, yielded by its ``vmmcache_connectors``.

    Attributes
    ----------
    name : str
    open : callable
        ``open(**options)`` gives a `Connector`, or ConnectorUnavailable where there is none to be had. The library is
        imported here and not before.
    needs : ConnectorNeeds
        What it needs unless options say otherwise; shown by ``vmmcache probe``.
    reason : callable
        ``reason()`` says why it cannot be opened here, and the cure; None where it can. May load the library: a probe
        calls it in a child process.
    modules : tuple of str
        Top-level packages of its library, of which one is enough. A probe that does not load libraries looks whether
        one is there.
    """

    name: str
    open: Callable[..., Connector]
    needs: ConnectorNeeds
    reason: Callable[[], tuple[str, str] | None]
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name.isidentifier():
            raise ConfigError("ConnectorSpec.name", self.name, "letters, digits and underscores, such as 'nixl'")
        if not isinstance(self.needs, ConnectorNeeds):
            raise ConfigError("ConnectorSpec.needs", self.needs, "must be ConnectorNeeds")
