"""Finds three devices. Opening the first raises, the second gives something else, the third gives nothing."""

from vmmcache import DriverSpec, Step, Survey, hookimpl


def _open(index):
    if not index:
        raise RuntimeError("acme: error 999 [unknown]")
    return object() if index == 1 else None


def _survey():
    return Survey(steps=(Step("load", ok=True, detail="libacme"),), devices=("Acme A1", "Acme A2", "Acme A3"))


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("no_drivers", open=_open, survey=_survey)
