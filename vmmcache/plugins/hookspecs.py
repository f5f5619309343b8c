"""The hooks. They register and do no work: what they yield is called directly from then on.

A plug-in is an installed distribution with an entry point in the group ``vmmcache`` that names a *module*; the
module has one or more of these functions, each marked with `hookimpl`::

    from vmmcache import DriverSpec, hookimpl

    @hookimpl
    def vmmcache_drivers():
        yield DriverSpec("musa", open=open_device, survey=survey)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pluggy

from vmmcache.spec import DriverSpec

__all__ = ["GROUP", "hookimpl", "hookspec"]

GROUP = "vmmcache"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def vmmcache_drivers() -> Iterable[DriverSpec]:  # type: ignore[empty-body]  # a specification has no body
    """Yield the drivers that this plug-in provides, without touching a device or a vendor library."""


@hookspec
def vmmcache_connectors() -> Iterable[Any]:  # type: ignore[empty-body]  # a specification has no body
    """Yield records, each with a ``name``, of the connectors that this plug-in provides."""


@hookspec
def vmmcache_warmup_constraints() -> Iterable[Any]:  # type: ignore[empty-body]  # a specification has no body
    """Yield records, each with a ``name``, of warm-up constraints that belong to a kind of model."""
