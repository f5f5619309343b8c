"""The CUDA driver on emulated libraries: its tests run in a child for each profile, and here is what came of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.children import EVERYWHERE, FAULTS, LIFE, MACHINE, RecordProperty, clean, forked, good
from tests.emulator.control import Emulator

PROFILES = [
    *("cuda-13", "cuda-12.9", "cuda-12.2", "cuda-wsl2", "cuda-no-imex", "cuda-fabric", "cuda-64k"),
    *("cuda-jetson", "cuda-mig", "cuda-closed-modules"),
]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_driver_keeps_the_contract(profile: str, tmp_path: Path, record_property: RecordProperty) -> None:
    outcome = good(Emulator("cuda", profile), EVERYWHERE, tmp_path, record_property)
    assert outcome.passed >= 110
    assert outcome.skipped == 0


def test_calls_contexts_and_memory(tmp_path: Path, record_property: RecordProperty) -> None:
    outcome = good(Emulator("cuda", "cuda-13", devices=2), LIFE, tmp_path, record_property)
    assert outcome.passed >= 30


def test_sharing_by_fabric_handles(tmp_path: Path, record_property: RecordProperty) -> None:
    """C7, D9: with descriptors, all of this is among the tests above."""
    outcome = good(Emulator("cuda", "cuda-fabric"), ("test_sharing.py",), tmp_path, record_property)
    assert outcome.passed >= 7


@pytest.mark.timeout(600)
def test_whatever_fails_is_told_and_leaves_nothing(tmp_path: Path, record_property: RecordProperty) -> None:
    """The heart of it: a small granule and two devices, so that thousands of faults take seconds."""
    emulator = Emulator("cuda", "cuda-64k", devices=2, dirty=2)
    outcome = good(emulator, FAULTS, tmp_path, record_property, timeout=500)
    assert outcome.properties["counted: injected vendor faults"] >= 10_000


@pytest.mark.timeout(600)
def test_the_stateful_machine_finds_nothing_while_calls_fail(tmp_path: Path, record_property: RecordProperty) -> None:
    emulator = Emulator("cuda", "cuda-64k", devices=2, dirty=2)
    outcome = good(emulator, MACHINE, tmp_path, record_property, timeout=500)
    assert outcome.properties["counted: steps of the stateful machine"] >= 5_000
    assert outcome.properties["counted: injected vendor faults"] >= 1_000


USE = """
from vmmcache import ExtensibleTensor, open_driver
driver = open_driver("cuda:0")
tensor = ExtensibleTensor(64 << 20, driver)
tensor.commit(8 << 20)
"""


def test_at_exit_memory_and_primary_context_go_back(tmp_path: Path) -> None:
    """D7, T8: also where nobody closes anything."""
    emulator = Emulator("cuda", "cuda-13", journal=tmp_path / "journal")
    clean(emulator, USE)
    calls = [record.call for record in emulator.journal()]
    assert calls.count("cuDevicePrimaryCtxRetain") == calls.count("cuDevicePrimaryCtxRelease") == 1
    assert calls.index("cuDevicePrimaryCtxRelease") > max(
        place for place, call in enumerate(calls) if call == "cuMemAddressFree"
    )
    assert not [call for call in calls if call.startswith("cuCtxCreate")]


def test_a_forked_child_is_told_and_ends_in_peace(tmp_path: Path) -> None:
    """D7: no crash, no call of the library, and nothing of the parent's is given back."""
    emulator = Emulator("cuda", "cuda-13", journal=tmp_path / "journal")
    assert forked(emulator, USE + FORK) == "StateError forked\n0\n8388608\n"


FORK = """
import os, sys
from vmmcache import StateError
sys.stdout.flush()
pid = os.fork()
if not pid:
    try:
        tensor.commit(16 << 20)
    except StateError as error:
        print(type(error).__name__, error.state, flush=True)
    sys.exit()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
print(tensor.committed_bytes)
tensor.close()
"""


def test_a_device_that_there_is_not_is_named(tmp_path: Path) -> None:
    script = """
from vmmcache import DriverUnavailable, open_driver
print(*(open_driver(f"cuda:{index}").device for index in range(8)))
for index in (8, 10**12):
    try:
        open_driver(f"cuda:{index}")
    except DriverUnavailable as error:
        print(error.reason)
"""
    names = " ".join(f"cuda:{index}" for index in range(8))
    reasons = "".join(f"there is no device {index}; the library finds 8\n" for index in (8, 10**12))
    assert clean(Emulator("cuda", "cuda-13", devices=8, journal=tmp_path / "journal"), script) == f"{names}\n{reasons}"
