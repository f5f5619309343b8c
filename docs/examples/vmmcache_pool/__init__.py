"""The plug-in: what vmmcache imports to learn that there is a driver, before anybody wants to use it."""

from __future__ import annotations

from collections.abc import Iterator

from vmmcache import DriverSpec, Survey, VmmDriver, hookimpl


def _open(index: int) -> VmmDriver:
    # Imported here and not above: to find a driver must not load what it needs to run.
    from vmmcache_pool._driver import open_pool

    return open_pool(index)


def _survey() -> Survey:
    from vmmcache_pool._survey import survey

    return survey()


@hookimpl
def vmmcache_drivers() -> Iterator[DriverSpec]:
    """Yield the pool driver."""
    yield DriverSpec("pool", open=_open, survey=_survey, accelerator=False)
