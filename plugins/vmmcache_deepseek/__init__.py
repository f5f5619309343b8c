"""Warm-up constraint of the DeepSeek V4 kind. The planner is imported when somebody asks for it, not by every probe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmmcache import hookimpl

if TYPE_CHECKING:
    from vmmcache.planning import WarmupConstraint


@hookimpl
def vmmcache_warmup_constraints() -> Iterable[WarmupConstraint]:
    """The constraint of this plug-in."""
    from vmmcache_deepseek._constraint import CONSTRAINT

    yield CONSTRAINT
