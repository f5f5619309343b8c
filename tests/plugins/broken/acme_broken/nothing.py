"""Forgets to give its driver back."""

from vmmcache import hookimpl


@hookimpl
def vmmcache_drivers():
    pass
