"""The host driver: virtual memory of Linux itself, so that everything runs, and is tested, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from vmmcache import DriverSpec, Survey, VmmDriver, hookimpl


def _open(index: int) -> VmmDriver:
    from vmmcache_host._driver import open_host

    return open_host(index)


def _survey() -> Survey:
    from vmmcache_host._survey import survey

    return survey()


@hookimpl
def vmmcache_drivers() -> Iterator[DriverSpec]:
    """Yield the host driver."""
    yield DriverSpec("host", open=_open, survey=_survey, accelerator=False)
