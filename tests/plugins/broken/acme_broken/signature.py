"""Wants an argument that the hook does not have."""

from vmmcache import hookimpl


@hookimpl
def vmmcache_drivers(config):
    yield from config
