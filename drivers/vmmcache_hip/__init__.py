"""The HIP driver, over AMD's own Python bindings (``from hip import hip``)."""

from __future__ import annotations

from collections.abc import Iterator

from vmmcache import DriverSpec, Survey, VmmDriver, hookimpl


def _open(index: int) -> VmmDriver:
    from vmmcache_hip._driver import open_hip

    return open_hip(index)


def _survey() -> Survey:
    from vmmcache_hip._survey import survey

    return survey()


@hookimpl
def vmmcache_drivers() -> Iterator[DriverSpec]:
    """Yield the HIP driver."""
    yield DriverSpec("hip", open=_open, survey=_survey)
