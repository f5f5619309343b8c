"""Its library waits for a device that does not answer."""

import threading

from vmmcache import DriverSpec, hookimpl


def _survey():
    threading.Event().wait()


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("hanging", open=print, survey=_survey)
