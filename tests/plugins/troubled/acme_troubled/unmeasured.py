"""Divides zero by zero where it should say how long something took."""

from vmmcache import DriverSpec, Step, Survey, hookimpl


def _survey():
    return Survey(steps=(Step("load", ok=False, reason="no", cure="none", ms=float("nan")),))


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("unmeasured", open=print, survey=_survey)
