"""Tests of a driver run in a child, many at once; the parent learns what became of them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.emulator.child import outside_only, run_tests
from tests.emulator.control import Emulator

PREAMBLE = """
import ctypes
from tests.emulator.control import Control
control = Control.here()
"""


@pytest.fixture
def write(tmp_path: Path) -> Path:
    """A folder for a child's tests."""
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder


def test_counts_properties_and_a_clean_end(write: Path) -> None:
    (write / "test_some.py").write_text(
        PREAMBLE
        + dedent("""
        import pytest

        @pytest.mark.parametrize("faults", [3, 4])
        def test_faults(faults, record_property):
            record_property("faults", faults)
            assert control.get("devices") == 5

        def test_skipped():
            pytest.skip("nothing to see")
        """)
    )
    outcome = run_tests(Emulator("hip", "hip-10.0", devices=5), write, folder=write)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (2, 0, 1)
    assert outcome.properties == {"faults": 7}
    assert outcome.good
    assert str(outcome) == "2 passed, 0 failed, 1 skipped"


def test_failures_and_leaks_are_told(write: Path) -> None:
    (write / "test_some.py").write_text(
        PREAMBLE
        + dedent("""
        def test_leak():
            address = ctypes.c_uint64()
            control.cuInit(0)
            granule = ctypes.c_uint64(2 << 20)
            assert control.cuMemAddressReserve(ctypes.byref(address), granule, None, None, None) == 0

        def test_failure():
            assert control.count("reservations") == 0
        """)
    )
    outcome = run_tests(Emulator("cuda", "cuda-13"), write, folder=write)
    assert (outcome.passed, outcome.failed) == (1, 1)
    assert not outcome.good
    assert outcome.left_behind == ("vmmemu: cuda: left at exit: 1 reservations, 0 handles, 0 mappings",)
    assert "assert 1 == 0" in str(outcome)


def test_a_leak_alone_is_not_good(write: Path) -> None:
    (write / "test_some.py").write_text(
        PREAMBLE
        + "def test_release():\n    control.cuInit(0)\n    assert control.cuMemRelease(ctypes.c_uint64(64)) == 1\n"
    )
    outcome = run_tests(Emulator("cuda", "cuda-13"), write, folder=write)
    assert (outcome.passed, outcome.failed, outcome.good) == (1, 0, False)


@pytest.mark.parametrize("code", ["import nowhere\n", "import os\n\ndef test_end():\n    os.abort()\n", ""])
def test_a_child_without_a_verdict_is_an_error(write: Path, code: str) -> None:
    (write / "test_some.py").write_text(code)
    with pytest.raises(RuntimeError, match="pytest under cuda-13 ended with"):
        run_tests(Emulator("cuda", "cuda-13"), write, folder=write)


def test_only_a_child_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VMMEMU_LIBRARY", raising=False)
    assert outside_only() == ["test_*.py"]
    monkeypatch.setenv("VMMEMU_LIBRARY", "/somewhere")
    assert outside_only() == []
