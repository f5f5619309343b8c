"""Bytes and addresses, kept apart by type; rounding; sizes as people write them."""

from __future__ import annotations

import operator
import re
from typing import Final, NewType

from vmmcache.errors import ConfigError

__all__ = [
    "ADDRESSES",
    "GIB",
    "KIB",
    "MIB",
    "TIB",
    "Address",
    "Bytes",
    "align_down",
    "align_up",
    "as_count",
    "format_bytes",
    "parse_bytes",
]

Bytes = NewType("Bytes", int)
Address = NewType("Address", int)

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
ADDRESSES: Final = 1 << 62
"""More bytes than any device has addresses; what is larger would wrap around in the vendors' 64-bit arguments."""

# Both spellings of a prefix are powers of two: nobody who writes 16GB of GPU memory means 10^9.
_UNITS: Final = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB, "P": 1 << 50}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?\s*", re.IGNORECASE | re.ASCII)


def align_up(value: int, step: int) -> int:
    """Round `value` up to a multiple of `step`.

    >>> align_up(5, 4), align_up(8, 4)
    (8, 8)
    """
    return -(-value // step) * step


def align_down(value: int, step: int) -> int:
    """Round `value` down to a multiple of `step`.

    >>> align_down(5, 4), align_down(8, 4)
    (4, 8)
    """
    return value // step * step


def as_count(field: str, value: object, *, minimum: int = 0, maximum: int | None = None, unit: str = "bytes") -> int:
    """Give `value` back as an int, or raise a ConfigError that names `field`.

    Integers of other libraries (numpy, torch scalars of an integer type) are taken; floats, NaN and booleans are not,
    because a size that was computed in floating point is a size that is sometimes off by one.
    """
    if isinstance(value, bool):
        raise ConfigError(field, value, f"must be a whole number of {unit}, not a bool")
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the point is to ask whether it has __index__
    except TypeError:
        kind = type(value).__name__
        raise ConfigError(field, value, f"must be a whole number of {unit}, not {kind}") from None
    if number < minimum:
        raise ConfigError(field, value, f"must be at least {minimum} {unit}")
    if maximum is not None and number > maximum:
        raise ConfigError(field, value, f"must be at most {maximum} {unit}")
    return number


def parse_bytes(text: str, *, field: str = "size") -> int:
    """Read a size such as ``"60GiB"``, ``"512M"``, ``"1.5 GiB"`` or ``"4096"``.

    >>> parse_bytes("1.5GiB") == 3 * GIB // 2
    True
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(field, text, "not a size; write for example 60GiB, 512MiB or 4096")
    number, prefix = match.groups()
    whole, _, fraction = number.partition(".")
    unit = _UNITS[prefix.upper()]
    # Decimal digits as integers: no float, so 0.1TiB is the same on every machine.
    return int(whole) * unit + int(fraction or 0) * unit // int("1" + "0" * len(fraction))


def format_bytes(nbytes: int) -> str:
    """Write a size for people: the largest unit that leaves a number of at least 1, at most two decimals.

    >>> format_bytes(3 * GIB // 2), format_bytes(2 * MIB), format_bytes(17)
    ('1.5 GiB', '2 MiB', '17 B')
    """
    sign, nbytes = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    for prefix in "PTGMK":
        unit = _UNITS[prefix]
        if nbytes >= unit:
            return f"{sign}{nbytes / unit:.2f}".rstrip("0").rstrip(".") + f" {prefix}iB"
    return f"{sign}{nbytes} B"
