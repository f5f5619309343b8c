"""The manager on emulated CUDA and HIP libraries: its tests run in a child for each, and here is what came of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.children import RecordProperty, good
from tests.emulator.control import Emulator, Vendor
from vmmcache.units import MIB

FILES = ("test_manager_life.py", "test_manager_machine.py")
PROFILES: list[tuple[Vendor, str]] = [("cuda", "cuda-64k"), ("hip", "hip-7.14")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("vendor", "profile"), PROFILES)
def test_the_manager_on_a_vendors_library(
    vendor: Vendor, profile: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    outcome = good(Emulator(vendor, profile, total=8 * MIB, dirty=2), FILES, tmp_path, record_property, timeout=280)
    assert outcome.passed >= 18
    assert outcome.properties["counted: injected vendor faults"] >= 300
    assert outcome.properties["counted: steps of the manager's machine"] >= 1_200
