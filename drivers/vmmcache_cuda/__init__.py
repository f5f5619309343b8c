"""The CUDA driver, over NVIDIA's own Python bindings (``cuda.bindings.driver``)."""

from __future__ import annotations

from collections.abc import Iterator

from vmmcache import DriverSpec, Survey, VmmDriver, hookimpl


def _open(index: int) -> VmmDriver:
    from vmmcache_cuda._driver import open_cuda

    return open_cuda(index)


def _survey() -> Survey:
    from vmmcache_cuda._survey import survey

    return survey()


@hookimpl
def vmmcache_drivers() -> Iterator[DriverSpec]:
    """Yield the CUDA driver."""
    yield DriverSpec("cuda", open=_open, survey=_survey)
