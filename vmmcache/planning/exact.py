"""Numbers that people write with a decimal point, as the exact fractions they mean."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from vmmcache.errors import ConfigError

__all__ = ["as_exact"]


def as_exact(field: str, value: object) -> Fraction:
    """Read a number as it was written: 0.7 is seven tenths, not the binary fraction beside it.

    >>> as_exact("share", 0.7)
    Fraction(7, 10)

    Raises
    ------
    ConfigError
        Not a number, or not a finite one.
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ConfigError(field, value, f"must be a number, not {type(value).__name__}")
    if not _is_finite(value):
        raise ConfigError(field, value, "must be a finite number")
    return Fraction(str(value))


def _is_finite(value: object) -> bool:
    # An int may be too large for a float and is finite all the same; a Decimal may be finite and round to infinity.
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) or math.isfinite(value)  # type: ignore[arg-type]  # it has __float__
