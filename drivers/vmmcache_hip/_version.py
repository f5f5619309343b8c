"""The gate by version: a probe by trial would pass on a runtime whose defect depends on the order of calls."""

from __future__ import annotations

import os
from typing import Final

from vmmcache import DriverUnavailable
from vmmcache_hip._quirks import OLDEST, UNIFORM_OLDEST

__all__ = ["UNIFORM", "check_version", "version_of"]

UNIFORM: Final = "VMMCACHE_HIP_UNIFORM_CHUNKS"


def version_of(number: int) -> tuple[int, int]:
    """Major and minor version in what ``hipRuntimeGetVersion`` says: major * 10^7 + minor * 10^5 + patch.

    >>> version_of(71460850)
    (7, 14)
    """
    return divmod(number // 100_000, 100)


def check_version(version: tuple[int, int]) -> bool:
    """Whether all allocations must have one size; DriverUnavailable where not even that helps."""
    if version >= OLDEST:
        return False
    text = ".".join(map(str, version))
    if version < UNIFORM_OLDEST:
        raise DriverUnavailable(
            f"the HIP runtime is {text}; before 7.0 its virtual memory management drops errors and leaks",
            cure="Update to ROCm 7.12 or newer",
            driver="hip",
            call="hipRuntimeGetVersion",
        )
    if os.environ.get(UNIFORM) == "1":
        return True
    raise DriverUnavailable(
        f"the HIP runtime is {text}, which rejects access to mapped memory once allocations of unequal sizes share a "
        "reservation (rocm-systems#2516)",
        cure=f"Update to ROCm 7.12 or newer, or set {UNIFORM}=1, which makes all allocations equal and is slower",
        driver="hip",
        call="hipRuntimeGetVersion",
    )
