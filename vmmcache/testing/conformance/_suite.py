"""What every part of the suite has: the driver under test, a way to look at memory, and what its platform is like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from vmmcache.driver import VmmDriver
from vmmcache.testing.asserting import require_assertions
from vmmcache.testing.conformance._workbench import Workbench
from vmmcache.units import TIB

__all__ = ["Suite"]

require_assertions("the conformance suite")


class Suite:
    """Override the fixture; override the rest where your platform differs."""

    aliases: ClassVar[bool] = True
    """Whether one allocation may be mapped at two places at once. Where not, the second map has to be refused."""
    sole_user: ClassVar[bool] = True
    """Whether nobody else takes or gives back memory of the device meanwhile. Where not, its amount is not compared."""
    large_reservation: ClassVar[int] = TIB
    """Bytes of addresses that the platform grants, more than the device has memory."""

    @pytest.fixture
    def driver(self) -> VmmDriver:
        """Give the driver under test. Called for every test; it may give the same one each time."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `driver` that gives the driver under test")

    def peek(self, driver: VmmDriver, address: int, nbytes: int) -> bytes:
        """Look at granted memory. By the driver's own `read`; go around the driver where you can."""
        return bytes(driver.read(address, nbytes))

    def poke(self, driver: VmmDriver, address: int, data: bytes) -> None:
        """Change granted memory. By the driver's own `write`; go around the driver where you can."""
        driver.write(address, data)

    @pytest.fixture
    def bench(self, driver: VmmDriver) -> Iterator[Workbench]:
        """The driver under test; what a test takes from it goes back afterwards."""
        bench = Workbench(driver)
        yield bench
        bench.clear()

    def free_bytes(self, bench: Workbench) -> int | None:
        """Free memory now; None where it says nothing: others use the device too, or it keeps memory for a while."""
        return bench.driver.memory_info().free if self.sole_user and not bench.driver.keeps_memory else None
