"""A plug-in that provides no driver, and is no broken driver for that."""

from types import SimpleNamespace

from vmmcache import hookimpl


@hookimpl
def vmmcache_connectors():
    yield SimpleNamespace(name="musa_connector")
