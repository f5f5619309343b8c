"""Provides one good driver, then fails."""

from vmmcache import DriverSpec, hookimpl


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("half_good", open=print, survey=print)
    raise OSError("the second one is not to be had")
