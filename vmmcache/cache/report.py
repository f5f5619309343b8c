"""SizingReport: how large a cache became, and every number that made it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vmmcache.cache.budget import MemoryBudget, Mode, SizedBy
from vmmcache.cache.fitting import alignment_loss
from vmmcache.cache.report_text import as_text
from vmmcache.cache.sizing import Budget
from vmmcache.cache.snapshots import Snapshot
from vmmcache.cache.warmup import Exercised, Skipped, WarmupLog
from vmmcache.planning import Plan, Reduction

__all__ = ["GroupSizes", "Registered", "SizingReport", "group_sizes", "warm_up_fields"]

SCHEMA: Final = 1


class GroupSizes(NamedTuple):
    """Slots of one pool group."""

    capacity: int
    """Most that there can ever be: measured, those for which addresses are reserved; estimated, all of the device."""
    committed: int
    """So many have memory."""
    usable: int
    """So many requests can have: not the null block (S13)."""
    floor: int
    """Fewer are refused, now and later (I12)."""
    alignment: int
    """The step of slots at which every segment ends on a granule."""
    lost: int
    """Slots given up to end on one."""
    slot_bytes: int
    """Bytes of one slot in all pools."""
    nbytes: int
    """Bytes that the committed slots take."""


class Registered(NamedTuple):
    """What a connector registered."""

    connector: str
    segments: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingReport:
    """What `KVCacheManager.finalize` found and did. Sizes are bytes."""

    mode: Mode
    """Path that was taken."""
    fallback_reason: str | None = None
    """Why it is the estimated one: what a probe, a driver or another rank said, or that it was asked for."""
    sized_by: SizedBy
    """What decided the size."""
    device: str
    memory_source: str
    """Who said how much memory there is (S14)."""
    settings: MemoryBudget
    snapshots: tuple[Snapshot, ...] = ()
    budget: Budget | None = None
    """Every term of the size; None where the caller stated it (S12)."""
    others: int = 0
    """Bytes of the budget that are those of other managers which share the device (S1)."""
    withheld: int = 0
    """Bytes of the budget that were left aside, because memory disappeared when it was to be committed."""
    estimate: Budget | None = None
    """Beside a measurement: what the default of the estimated path would have given, on the same snapshots."""
    peak_source: str = ""
    """Where the transient peak comes from, or why none was seen."""
    granule: int
    groups: tuple[GroupSizes, ...]
    nbytes: int
    """What memory maps for all groups."""
    alignment_loss: int = 0
    """Bytes of the budget that are not used because segments end on granules."""
    reductions: tuple[Reduction, ...] = ()
    """FIT_TO_QUOTA requests that were cut (P6)."""
    exercised: tuple[Exercised, ...] = ()
    """Shapes that warm-up ran: the margin covers these (S6)."""
    skipped: tuple[Skipped, ...] = ()
    missing: tuple[str, ...] = ()
    """Shapes of which warm-up said nothing."""
    rank: int = 0
    ranks: int = 1
    registered: tuple[Registered, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as a JSON object; ``vmmcache/schemas/sizing.schema.json`` describes it."""
        return {
            "schema": SCHEMA,
            "mode": self.mode,
            "fallback_reason": self.fallback_reason,
            "sized_by": self.sized_by,
            "device": self.device,
            "memory_source": self.memory_source,
            "constants": _constants(self.settings, self.mode),
            "snapshots": [_snapshot(snapshot) for snapshot in self.snapshots],
            "budget": _budget(self.budget),
            "others": self.others,
            "withheld": self.withheld,
            "estimate": _budget(self.estimate),
            "peak_source": self.peak_source,
            "granule": self.granule,
            "groups": [group._asdict() for group in self.groups],
            "nbytes": self.nbytes,
            "alignment_loss": self.alignment_loss,
            "reductions": [
                reduction._asdict()
                | {"capacity": list(reduction.capacity), "history_length": list(reduction.history_length)}
                for reduction in self.reductions
            ],
            "warm_up": {
                "exercised": [{"shape": str(one.shape), "facts": dict(one.facts)} for one in self.exercised],
                "skipped": [{"shape": str(one.shape), "reason": one.reason} for one in self.skipped],
                "missing": [str(shape) for shape in self.missing],
            },
            "rank": self.rank,
            "ranks": self.ranks,
            "registered": [one._asdict() for one in self.registered],
        }

    def __str__(self) -> str:
        return as_text(self)


def group_sizes(plan: Plan, capacity: Sequence[int], lost: Sequence[int] | None = None) -> tuple[GroupSizes, ...]:
    """What a report says of a plan's groups, `capacity` slots of each having addresses.

    `lost` are the slots that each gave up to end on a granule, where the plan alone does not say: those of a stated
    count, and those of the plan from before other ranks agreed on less.
    """
    if lost is None:
        lost = alignment_loss(plan).slots
    return tuple(
        GroupSizes(
            capacity=reserved,
            committed=group.slots,
            usable=group.slots - plan.reserved_slots,
            floor=group.min_slots,
            alignment=plan.alignment(index),
            lost=lost[index],
            slot_bytes=sum(group.slot_bytes),
            nbytes=group.nbytes,
        )
        for index, (group, reserved) in enumerate(zip(plan.groups, capacity, strict=True))
    )


def warm_up_fields(log: WarmupLog) -> dict[str, Any]:
    """The fields of a report that say what warm-up ran."""
    return {"exercised": log.exercised, "skipped": log.left_out, "missing": tuple(map(str, log.missing))}


def _constants(settings: MemoryBudget, mode: Mode) -> Mapping[str, Any]:
    return {
        "utilization": None if settings.manual else float(settings.utilization_on(mode)),
        "margin_fraction": float(settings.margin_fraction),
        "margin_floor": settings.margin_floor,
        "warmup_reserve": float(settings.warmup_reserve),
        "graph_estimate": settings.graph_estimate,
        "encoder_reserve": settings.encoder_reserve,
    }


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "stage": snapshot.stage,
        "free": snapshot.free,
        "total": snapshot.total,
        "source": snapshot.source,
        "committed": snapshot.committed,
        "reserved_peak": snapshot.reserved_peak,
        "live": snapshot.live,
    }


def _budget(budget: Budget | None) -> dict[str, Any] | None:
    return None if budget is None else budget._asdict() | {"utilization": float(budget.utilization)}
