"""The host driver keeps the contract; what only it promises is in test_host_driver.py."""

from __future__ import annotations

import ctypes

import pytest

from vmmcache import VmmDriver
from vmmcache.testing import DirtyDriver, DriverConformance, RecordingDriver, WrappingDriver
from vmmcache_host import _driver


class OverHostMemory(DriverConformance):
    """Looks at memory as the process sees it, and not as the driver says it is."""

    @pytest.fixture(autouse=True)
    def _known_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What neighbours do to the machine's memory is no part of these tests.
        monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "1GiB")

    def peek(self, driver: VmmDriver, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def poke(self, driver: VmmDriver, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))


class TestHostDriver(OverHostMemory):
    @pytest.fixture
    def driver(self) -> VmmDriver:
        return _driver.open_host(0)


class TestWrappingDriver(OverHostMemory):
    """What wraps a driver is a driver."""

    @pytest.fixture(params=[WrappingDriver, DirtyDriver, lambda inner: RecordingDriver(inner, rules=False)])
    def driver(self, request: pytest.FixtureRequest) -> VmmDriver:
        driver: VmmDriver = request.param(_driver.open_host(0))
        return driver
