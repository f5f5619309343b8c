"""MemoryBudget: what a caller says about how much memory a cache may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from vmmcache.errors import ConfigError
from vmmcache.planning.exact import as_exact
from vmmcache.planning.limits import MAX_SLOTS, as_size
from vmmcache.units import MIB

__all__ = [
    "ESTIMATED_UTILIZATION",
    "MARGIN_FLOOR",
    "MARGIN_FRACTION",
    "MEASURED_UTILIZATION",
    "WARMUP_RESERVE",
    "MemoryBudget",
    "Mode",
    "SizedBy",
]

Mode: TypeAlias = Literal["measured", "estimated"]
SizedBy: TypeAlias = Literal["measurement", "estimate", "bytes", "slots"]

MEASURED_UTILIZATION: Final = 1.0
"""Share of the device's memory where the caller says none and what is left is measured."""
ESTIMATED_UTILIZATION: Final = 0.92
"""The same where it is estimated: what the estimate does not see has to fit into the rest."""
MARGIN_FRACTION: Final = 0.5
"""Share of the transient peak that is kept free beside it, on the measured path."""
MARGIN_FLOOR: Final = 256 * MIB
"""Bytes that are kept free at least, on the measured path."""
WARMUP_RESERVE: Final = 0.1
"""Share of the headroom that warm-up may not commit, so that what it runs finds memory."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How much memory a cache may take. The default measures.

    A size that is given wins over every measurement (S12); `nbytes`, `slots` and `utilization` exclude each other.

    Parameters
    ----------
    utilization : float, optional
        Share of the device's total memory that this process may use, cache included: above 0, at most 1. None is 1.0
        where the cache is measured and 0.92 where it is estimated (S4). A float means its shortest decimal.
    nbytes : int, optional
        Bytes of the cache.
    slots : int or sequence of int, optional
        Slots of every pool group, or one number for each.
    margin_fraction : float, default 0.5
        Measured path: share of the transient peak that stays free beside it.
    margin_floor : int, default 256 MiB
        Measured path: bytes that stay free at least.
    warmup_reserve : float, default 0.1
        Measured path: share of the headroom, from 0 to below 1, that `ensure` may not commit before `finalize`.
    graph_estimate : int, default 0
        Estimated path: bytes that graphs will take which were not captured while profiling.
    encoder_reserve : int, default 0
        Estimated path: bytes that an encoder will need while profiling, kept out of the temporary pool's quota.

    Raises
    ------
    ConfigError
        A field is out of its range, or two sizes are given; the error names the field.
    """

    utilization: float | None = None
    nbytes: int | None = None
    slots: int | Sequence[int] | None = None
    margin_fraction: float = MARGIN_FRACTION
    margin_floor: int = MARGIN_FLOOR
    warmup_reserve: float = WARMUP_RESERVE
    graph_estimate: int = 0
    encoder_reserve: int = 0

    def __post_init__(self) -> None:
        """Check, and freeze what was given as a list."""
        if self.utilization is not None and not 0 < as_exact("utilization", self.utilization) <= 1:
            raise ConfigError("utilization", self.utilization, "must be above 0 and at most 1, a share of all memory")
        if as_exact("margin_fraction", self.margin_fraction) < 0:
            raise ConfigError("margin_fraction", self.margin_fraction, "must not be negative")
        if not 0 <= as_exact("warmup_reserve", self.warmup_reserve) < 1:
            raise ConfigError("warmup_reserve", self.warmup_reserve, "must be at least 0 and below 1")
        for field in ("margin_floor", "graph_estimate", "encoder_reserve"):
            object.__setattr__(self, field, as_size(field, getattr(self, field)))
        if self.nbytes is not None:
            object.__setattr__(self, "nbytes", as_size("nbytes", self.nbytes, minimum=1))
        if self.slots is not None:
            object.__setattr__(self, "slots", _slots(self.slots))
        given = [field for field in ("nbytes", "slots", "utilization") if getattr(self, field) is not None]
        if len(given) > 1:
            raise ConfigError(
                given[0],
                getattr(self, given[0]),
                f"is a size of its own, and so is {given[1]}={getattr(self, given[1])!r}: give one of them",
            )

    @property
    def manual(self) -> bool:
        """Whether the size is given, so that nothing is measured or estimated."""
        return self.nbytes is not None or self.slots is not None

    def sized_by(self, mode: Mode) -> SizedBy:
        """What decides the size on a path."""
        if self.nbytes is not None:
            return "bytes"
        if self.slots is not None:
            return "slots"
        return "measurement" if mode == "measured" else "estimate"

    def utilization_on(self, mode: Mode) -> Fraction:
        """The caller's utilization, else the default of the path, exactly as written."""
        if self.utilization is not None:
            return as_exact("utilization", self.utilization)
        return as_exact("utilization", MEASURED_UTILIZATION if mode == "measured" else ESTIMATED_UTILIZATION)

    def slots_of(self, groups: int) -> tuple[int, ...] | None:
        """The slots that were given, one number for each of `groups` pool groups; None where none were.

        Raises
        ------
        ConfigError
            One number per group was given, and not for so many groups.
        """
        if self.slots is None or isinstance(self.slots, int):
            return None if self.slots is None else (self.slots,) * groups
        if len(self.slots) != groups:
            problem = f"has {len(self.slots)} numbers, and the layout has {groups} pool groups"
            raise ConfigError("slots", self.slots, problem)
        return tuple(self.slots)


def _slots(value: object) -> int | tuple[int, ...]:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not value:
            raise ConfigError("slots", value, "must have one number for each pool group")
        return tuple(_count(f"slots[{index}]", number) for index, number in enumerate(value))
    return _count("slots", value)


def _count(field: str, value: object) -> int:
    return as_size(field, value, minimum=1, maximum=MAX_SLOTS, unit="slots")
