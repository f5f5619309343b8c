"""The conformance suite on one live device, for `vmmcache selftest`; the device comes by an environment variable."""

from __future__ import annotations

import os

import pytest

from vmmcache.driver import VmmDriver
from vmmcache.plugins.host import open_driver
from vmmcache.testing.conformance import DriverConformance
from vmmcache.testing.selftest import DEVICE


class TestDevice(DriverConformance):
    """Nobody promises that the device is ours alone, so free memory is only looked at."""

    sole_user = False

    @pytest.fixture
    def driver(self) -> VmmDriver:
        """The device under test, opened once."""
        return open_driver(os.environ[DEVICE])
