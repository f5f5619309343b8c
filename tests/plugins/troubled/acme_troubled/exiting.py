"""Its library raises what is no VmmCacheError."""

from vmmcache import DriverSpec, hookimpl


def _survey():
    raise RuntimeError("acme: error 999 [unknown]")


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("exiting", open=print, survey=_survey)
