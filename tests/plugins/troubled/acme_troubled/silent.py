"""Its library ends the process, and says that all is well."""

import os

from vmmcache import DriverSpec, hookimpl


def _survey():
    os._exit(0)


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("silent", open=print, survey=_survey)
