"""Gives one driver where drivers were asked for."""

from vmmcache import DriverSpec, hookimpl


@hookimpl
def vmmcache_drivers():
    return DriverSpec("acme", open=print, survey=print)
