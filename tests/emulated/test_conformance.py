"""The shipped suite on an emulated device."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import pytest

from tests.emulated.vendor import KEEPS_MEMORY, UNIFORM
from vmmcache import DriverError, VmmDriver
from vmmcache.testing import DriverConformance
from vmmcache.testing.conformance import Workbench


class TestConformance(DriverConformance):
    """Bytes are looked at past the driver, as the device has them: work that nobody waited for is not done yet."""

    sole_user: ClassVar[bool] = not KEEPS_MEMORY

    @pytest.fixture
    def driver(self, driver: VmmDriver) -> VmmDriver:
        return driver

    def peek(self, driver: VmmDriver, address: int, nbytes: int) -> bytes:
        driver.synchronise()
        return ctypes.string_at(address, nbytes)

    if UNIFORM:

        def test_access_to_memory_beside_memory_of_another_size_is_refused_here(self, bench: Workbench) -> None:
            """D4: the very defect for which these runtimes are used with allocations of one size only."""
            assert bench.driver.uniform_chunks
            small, large = bench.run(1, 2)
            bench.driver.grant([small])
            with pytest.raises(DriverError) as caught:
                bench.driver.grant([large])
            assert (caught.value.call, caught.value.code) == ("hipMemSetAccess", 1)
