"""Implements a hook that there is not."""

from vmmcache import hookimpl


@hookimpl
def vmmcache_driver():
    yield from ()
