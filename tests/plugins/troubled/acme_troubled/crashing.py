"""Its library crashes."""

import ctypes

from vmmcache import DriverSpec, hookimpl


def _survey():
    return ctypes.string_at(0)


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("crashing", open=print, survey=_survey)
