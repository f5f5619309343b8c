"""The plug-in: what vmmcache imports to learn that there is a driver, long before anybody wants to use it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vmmcache import DriverSpec, Step, Survey, VmmDriver, hookimpl


def _open(index: int) -> VmmDriver:
    # Imported here and not above: to learn that there is a driver must not load what the driver needs to run.
    from vmmcache_pool._driver import open_pool

    return open_pool(index)


def _survey() -> Survey:
    """Say what is there without opening it. Called in a probe's child process only."""
    if not hasattr(os, "memfd_create"):
        reason, cure = "this system has no memory files (memfd)", "Use Linux"
        return Survey(steps=(Step("load", ok=False, reason=reason, cure=cure),))
    return Survey(steps=(Step("load", ok=True, detail="memory files"),), devices=("a pool of shared memory",))


@hookimpl
def vmmcache_drivers() -> Iterator[DriverSpec]:
    """Yield the pool driver."""
    yield DriverSpec("pool", open=_open, survey=_survey, accelerator=False)
