"""Reading what this process has, region by region, each under its own lock."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from vmmcache.memory.atlas.known import Known, known
from vmmcache.memory.atlas.tables import AddressMap, Busy, Kind, LeaseMap, TensorMap
from vmmcache.memory.states import State

__all__ = ["look", "look_at", "started"]

_START_TIME: Final = 22
"""Number of the field in ``/proc/PID/stat``."""


def look(patience_s: float = -1, before: Mapping[int, TensorMap] | None = None) -> AddressMap:
    """What this process has now.

    Parameters
    ----------
    patience_s : float
        How long to wait for a tensor that is being changed; for ever by default. One that is busy for longer is shown
        as it was `before`, by its base address, with what it is busy with; or not at all, where it is new.
    """
    tensors = []
    for each in known():
        if not each.region.gate.lock.acquire(timeout=patience_s):
            if (last := (before or {}).get(each.region.base)) is not None:
                tensors.append(replace(last, busy=_busy(each)))
            continue
        try:
            if each.region.state is not State.CLOSED or each.region.owes:
                tensors.append(look_at(each))
        finally:
            each.region.gate.lock.release()
    return AddressMap(os.getpid(), started(os.getpid()) or 0, time.time(), tuple(tensors))


def look_at(each: Known) -> TensorMap:
    """One region; the caller holds its lock."""
    region, divided = each.region, each.divided
    mappings = region.mappings
    kind: Kind = "shared" if not each.ours else "dropped" if divided is None else "tensor"
    leases = () if each.leases is None else each.leases.all()
    return TensorMap(
        kind=kind,
        device=region.driver.device,
        state=region.state.value,
        base=region.base,
        reserved=region.nbytes,
        granule=region.granule,
        generation=region.generation,
        owed=region.physical_bytes - sum(mapping.nbytes for mapping in mappings),
        segments=() if divided is None else tuple(zip(divided.segments.sizes, divided.committed, strict=True)),
        allocations=tuple((mapping.offset, mapping.nbytes) for mapping in mappings),
        leases=tuple(LeaseMap(lease.address - region.base, lease.nbytes, lease.owner) for lease in leases),
    )


def started(pid: int) -> int | None:
    """When a process began, in clock ticks since the system did; None where there is none of that number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Its second field is the name, in parentheses, and may have spaces and parentheses of its own.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None  # ended, and not yet waited for
    return int(fields[_START_TIME - 3])


def _busy(each: Known) -> Busy | None:
    doing = each.region.gate.busy_with
    return None if doing is None else Busy(doing[0], (time.monotonic_ns() - doing[1]) / 1e9)
