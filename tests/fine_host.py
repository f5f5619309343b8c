"""The host driver with a small granule, for tests that fill memory thousands of times."""

from __future__ import annotations

from typing import Final

from vmmcache.units import KIB
from vmmcache_host._driver import HostDriver

__all__ = ["FINE", "FineHostDriver"]

FINE: Final = 64 * KIB


class FineHostDriver(HostDriver):
    """Maps in units of 64 KiB, which the operating system allows. What a granule is, everything else asks the driver."""

    def __init__(self) -> None:
        super().__init__()
        vars(self)["granule"] = FINE
