"""How large a number may be before it is no longer a size, and how the planner reads one."""

from __future__ import annotations

from typing import Final

from vmmcache.units import as_count

__all__ = ["MAX_SIZE", "MAX_SLOTS", "as_size"]

MAX_SLOTS: Final = 2**31 - 1
"""Most slots of a pool group: engines index slots with signed 32-bit integers."""

MAX_SIZE: Final = 2**63 - 1
"""Most bytes or tokens: what a driver's and an engine's signed 64-bit integers hold."""


def as_size(field: str, value: object, *, minimum: int = 0, maximum: int = MAX_SIZE, unit: str = "bytes") -> int:
    """`vmmcache.units.as_count` with an upper end: a size beyond any machine is a mistake, not a large plan."""
    # A plan reads thousands of numbers, nearly all of them plain and in range: those take the short way.
    if type(value) is int and minimum <= value <= maximum:
        return value
    return as_count(field, value, minimum=minimum, maximum=maximum, unit=unit)
