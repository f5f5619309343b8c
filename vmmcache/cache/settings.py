"""What a manager was asked for: its arguments, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vmmcache.cache.budget import MemoryBudget
from vmmcache.cache.ranks import OneProcess, Ranks
from vmmcache.cache.shared import SharedDevice
from vmmcache.connectors.base import Connector
from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError
from vmmcache.planning import Batch, CacheLayout
from vmmcache.planning.layers import items_of
from vmmcache.planning.layout import Arrangement, as_arrangement
from vmmcache.planning.warmup import EngineLimits, context_constraint, warmup_constraints
from vmmcache.plugins.host import split_device, warmup_records
from vmmcache.units import as_count

__all__ = ["Settings", "checked"]


class Settings(NamedTuple):
    """Arguments of `KVCacheManager`. What the planner checks itself is as it was given."""

    layout: CacheLayout
    device: str
    driver: VmmDriver | None
    """Where a driver was given that is open already."""
    budget: MemoryBudget
    constraints: tuple[Batch, ...]
    """What has to fit: the caller's batches, then those of the warm-up."""
    step: tuple[Batch, ...]
    """What the first pass of the estimated path has to hold, shortened where that does not fit."""
    ranks: Ranks
    connectors: tuple[str | Connector, ...]
    vmm: bool | None
    typical_step: Batch | None
    pool_ratio: tuple[float, ...] | None
    max_util_for_resume: float
    scratch_rewind: int | None
    sustained: bool
    arrangement: Arrangement
    null_block: bool
    tag: str
    shared: SharedDevice
    chunk: int
    """Most bytes of an allocation, where no connector registers it."""


def checked(
    layout: CacheLayout,
    device: str | VmmDriver,
    budget: MemoryBudget | None,
    constraints: Iterable[Batch],
    warmup: Iterable[Batch] | None,
    ranks: Ranks | None,
    connectors: Iterable[str | Connector],
    vmm: bool | None,
    limits: EngineLimits | None,
    typical_step: Batch | None,
    pool_ratio: Sequence[float] | None,
    max_util_for_resume: float,
    scratch_rewind: int | None,
    sustained: bool,
    arrangement: Arrangement,
    null_block: bool,
    tag: str,
    shared: SharedDevice | None,
    free_at_start: int | None,
    chunk: int,
) -> Settings:
    """The arguments of `KVCacheManager` as `Settings`.

    Raises
    ------
    ConfigError
        One of them is wrong.
    """
    if not isinstance(layout, CacheLayout):
        raise ConfigError("layout", layout, "must be a CacheLayout")
    driver = device if isinstance(device, VmmDriver) else None
    if driver is None:
        split_device(device)  # type: ignore[arg-type]  # a driver is not a string, and this says so
    if shared is not None and budget is not None and not budget.manual:
        raise ConfigError("budget", budget, "a shared device has its own; give that one, or a size in bytes or slots")
    budget = MemoryBudget() if budget is None else budget
    if free_at_start is not None:
        as_count("free_at_start", free_at_start)
    for field, value, kind in (
        ("budget", budget, MemoryBudget),
        ("ranks", ranks, Ranks),
        ("limits", limits, EngineLimits),
        ("shared", shared, SharedDevice),
    ):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(field, value, f"must be a {kind.__name__}")
    if vmm is not None and not isinstance(vmm, bool):
        raise ConfigError("vmm", vmm, "must be True (insist), False (switch off) or None (where it works)")
    _check_tag(tag)
    shapes: tuple[Batch, ...] = ()
    wanted = items_of("constraints", constraints, Batch, "Batch")
    if warmup is not None:
        shapes = items_of("warmup_constraints", warmup, Batch, "Batch")
    elif limits is not None:
        shapes = tuple(warmup_constraints(limits, warmup_records()))  # type: ignore[arg-type]  # checked there
    step = (context_constraint(limits),) if limits is not None else shapes or wanted
    return Settings(
        layout=layout,
        device=driver.device if driver is not None else str(device),
        driver=driver,
        budget=budget,
        constraints=wanted + shapes,
        step=step,
        ranks=OneProcess() if ranks is None else ranks,
        connectors=_connectors(connectors),
        vmm=vmm,
        typical_step=typical_step,
        pool_ratio=None if pool_ratio is None else tuple(pool_ratio),
        max_util_for_resume=max_util_for_resume,
        scratch_rewind=scratch_rewind,
        sustained=bool(sustained),
        arrangement=as_arrangement(arrangement),
        null_block=bool(null_block),
        tag=tag,
        shared=SharedDevice(MemoryBudget() if budget.manual else budget) if shared is None else shared,
        chunk=as_count("chunk", chunk, minimum=1),
    )


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str) or not tag:
        raise ConfigError("tag", tag, "must be a name by which sleep() and wake() find this memory")


def _connectors(values: Iterable[str | Connector]) -> tuple[str | Connector, ...]:
    if isinstance(values, str):
        raise ConfigError("connectors", values, "must be several names or connectors; write (name,) for one")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str | Connector):
            raise ConfigError("connectors", value, "must be a name, or a Connector that is open already")
    return found
