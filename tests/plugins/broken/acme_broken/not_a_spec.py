"""Yields something else than a DriverSpec."""

from vmmcache import hookimpl


@hookimpl
def vmmcache_drivers():
    yield {"name": "acme"}
