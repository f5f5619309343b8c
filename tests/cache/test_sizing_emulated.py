"""S2, S14: budgets from the real drivers over emulated libraries, a slice of a shared GPU among them (scenario 24)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.children import RecordProperty, good
from tests.emulator.control import Emulator, Vendor


@pytest.mark.parametrize(("vendor", "profile"), [("cuda", "cuda-mig"), ("hip", "hip-7.12")])
def test_budgets_on_an_emulated_device(
    vendor: Vendor, profile: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    outcome = good(Emulator(vendor, profile, devices=2), ("test_sizing.py",), tmp_path, record_property)
    assert outcome.passed == 2
