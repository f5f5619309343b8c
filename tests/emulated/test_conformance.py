"""The shipped suite on an emulated device."""

from __future__ import annotations

import ctypes

import pytest

from vmmcache import VmmDriver
from vmmcache.testing import DriverConformance


class TestConformance(DriverConformance):
    """Bytes are looked at past the driver, as the device has them: work that nobody waited for is not done yet."""

    @pytest.fixture
    def driver(self, driver: VmmDriver) -> VmmDriver:
        return driver

    def peek(self, driver: VmmDriver, address: int, nbytes: int) -> bytes:
        driver.synchronise()
        return ctypes.string_at(address, nbytes)
