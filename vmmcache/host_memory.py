"""How much host memory may be used, and who says so.

In this order: ``VMMCACHE_HOST_MEMORY`` (a size), the limits of this process's cgroup and of those above it, the
kernel's estimate MemAvailable. Memory that is committed but not yet touched is in none of the kernel's numbers, so
the host driver counts it itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vmmcache.units import KIB, parse_bytes

__all__ = ["VARIABLE", "HostMemory", "read_host_memory"]

VARIABLE: Final = "VMMCACHE_HOST_MEMORY"

_CGROUPS: Final = Path("/sys/fs/cgroup")
# Version 2 and version 1 of the kernel's interface: limit, usage, and the page cache that usage counts but that can
# be dropped.
_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes that may be used in all (`total`) and that are free now (`free`), with the source of the numbers."""

    total: int
    free: int
    source: str


def read_host_memory() -> HostMemory:
    """Read the numbers as they are now.

    Raises
    ------
    ConfigError
        ``VMMCACHE_HOST_MEMORY`` is set, and is no size.
    """
    if configured := os.environ.get(VARIABLE):
        nbytes = parse_bytes(configured, field=VARIABLE)
        return HostMemory(nbytes, nbytes, "configured")
    total, free = _meminfo(Path("/proc/meminfo").read_text("ascii"))
    source = "MemAvailable"
    for limit, usable in _cgroup_limits(Path("/proc/self/cgroup").read_text("utf-8"), _CGROUPS):
        if limit < total or usable < free:
            total, free, source = min(total, limit), min(free, usable), "cgroup"
    return HostMemory(total, max(0, free), source)


def _meminfo(text: str) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    total, available = (int(fields[name].split()[0]) * KIB for name in ("MemTotal", "MemAvailable"))
    return total, available


def _cgroup_limits(membership: str, root: Path) -> Iterator[tuple[int, int]]:
    """Limit and usable bytes of every memory cgroup above this process that sets a limit."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        here = base / path.lstrip("/")
        # In a container the path may be one of the host's, and then only the root of the tree is visible.
        for folder in (here, *here.parents):
            if not folder.is_relative_to(base):
                break
            yield from _limit_of(folder)


def _limit_of(folder: Path) -> Iterator[tuple[int, int]]:
    for limit_file, usage_file, cache_field in _FILES:
        limit = _read_number(folder / limit_file)
        usage = _read_number(folder / usage_file)
        if limit is not None and usage is not None:
            yield limit, max(0, limit - usage + _cache(folder / "memory.stat", cache_field))


def _read_number(path: Path) -> int | None:
    """A number; None where the file is not there or says "max"."""
    try:
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None


def _cache(path: Path, field: str) -> int:
    try:
        lines = path.read_text("ascii").splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field} ")), 0)
