"""The HIP driver on emulated libraries: its tests run in a child for each profile, and here is what came of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.children import EVERYWHERE, FAULTS, LIFE, MACHINE, RecordProperty, clean, forked, good
from tests.drivers.test_cuda import FORK, USE
from tests.emulator.control import Emulator

UNIFORM = ["hip-7.0", "hip-7.2"]
"""Runtimes on which all allocations must have one size: refused, unless the operator asks for that."""


@pytest.mark.parametrize("profile", ["hip-10.0", "hip-7.14", "hip-7.12"])
def test_the_driver_keeps_the_contract(profile: str, tmp_path: Path, record_property: RecordProperty) -> None:
    outcome = good(Emulator("hip", profile), EVERYWHERE, tmp_path, record_property)
    assert outcome.passed >= 110
    assert outcome.skipped == 1  # WSL2 is CUDA's


@pytest.mark.parametrize("profile", UNIFORM)
def test_with_allocations_of_one_size_the_driver_keeps_it_on_older_runtimes_too(
    profile: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    """D4, D10."""
    outcome = good(Emulator("hip", profile), (*EVERYWHERE, "test_keeps_memory.py"), tmp_path, record_property)
    assert outcome.passed >= 110


@pytest.mark.parametrize("profile", ["hip-10.0", "hip-7.14"])
def test_calls_devices_and_memory(profile: str, tmp_path: Path, record_property: RecordProperty) -> None:
    outcome = good(Emulator("hip", profile, devices=2), LIFE, tmp_path, record_property)
    assert outcome.passed >= 30


@pytest.mark.timeout(600)
def test_whatever_fails_is_told_and_leaves_nothing(tmp_path: Path, record_property: RecordProperty) -> None:
    """The heart of it: a small granule and two devices, so that thousands of faults take seconds."""
    emulator = Emulator("hip", "hip-10.0", devices=2, dirty=2)
    outcome = good(emulator, FAULTS, tmp_path, record_property, timeout=500)
    assert outcome.properties["counted: injected vendor faults"] >= 8_000


@pytest.mark.timeout(600)
def test_the_stateful_machine_finds_nothing_while_calls_fail(tmp_path: Path, record_property: RecordProperty) -> None:
    emulator = Emulator("hip", "hip-10.0", devices=2, dirty=2)
    outcome = good(emulator, MACHINE, tmp_path, record_property, timeout=500)
    assert outcome.properties["counted: steps of the stateful machine"] >= 5_000
    assert outcome.properties["counted: injected vendor faults"] >= 1_000


@pytest.mark.timeout(300)
def test_the_stateful_machine_finds_nothing_with_allocations_of_one_size(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    """D4, D10."""
    emulator = Emulator("hip", "hip-7.2", devices=2, dirty=2)
    outcome = good(emulator, MACHINE, tmp_path, record_property, timeout=250)
    assert outcome.properties["counted: steps of the stateful machine"] >= 5_000


def test_at_exit_memory_goes_back(tmp_path: Path) -> None:
    """T8: also where nobody closes anything."""
    emulator = Emulator("hip", "hip-10.0", journal=tmp_path / "journal")
    clean(emulator, USE.replace("cuda:0", "hip:0"))
    calls = [record.call for record in emulator.journal()]
    taken = calls.count("hipMemCreate") + calls.count("hipMemImportFromShareableHandle")  # the trial's at opening
    assert taken == calls.count("hipMemRelease") > 0


def test_a_forked_child_is_told_and_ends_in_peace(tmp_path: Path) -> None:
    """D7: no crash, no call of the library, and nothing of the parent's is given back."""
    emulator = Emulator("hip", "hip-10.0", journal=tmp_path / "journal")
    assert forked(emulator, USE.replace("cuda:0", "hip:0") + FORK) == "StateError forked\n0\n8388608\n"


@pytest.mark.parametrize("profile", UNIFORM)
def test_growth_on_older_runtimes_never_makes_two_sizes(profile: str, tmp_path: Path) -> None:
    """D4: what the operator asked for holds for every operation, so that the defect cannot trigger."""
    emulator = Emulator("hip", profile, journal=tmp_path / "journal")
    script = """
from vmmcache import ExtensibleTensor
tensor = ExtensibleTensor(64 << 20, "hip:0", segments=2)
for size in (2, 7, 12, 3, 20):
    tensor.commit(size << 20)
tensor.commit(9 << 20, defragment=True)
tensor.commit(11 << 20, defragment=True, keep=True)
tensor.release_physical(backup=True)
tensor.restore()
tensor.close()
"""
    clean(emulator, script, VMMCACHE_HIP_UNIFORM_CHUNKS="1")
    sizes = {record.arguments["size"] for record in emulator.journal() if record.call == "hipMemCreate"}
    assert sizes == {4096, 2 << 20}  # the trial at opening is in a reservation of its own


def test_import_takes_the_descriptor_as_the_version_wants_it(tmp_path: Path) -> None:
    """rocm-systems#1564: by pointer up to 7.0, where a value would crash; by value since."""
    script = """
import os
from vmmcache import open_driver
driver = open_driver("hip:0")
allocation = driver.create(2 << 20)
shared = driver.export_handle(allocation, "posix_fd")
driver.release(driver.import_handle(shared, "posix_fd", 2 << 20))
driver.release(allocation)
os.close(shared)
print(shared)
"""
    for profile, by_value in (("hip-7.0", False), ("hip-7.2", True), ("hip-10.0", True)):
        emulator = Emulator("hip", profile, journal=tmp_path / profile)
        shared = int(clean(emulator, script, VMMCACHE_HIP_UNIFORM_CHUNKS="1"))
        calls = [record for record in emulator.journal() if record.call == "hipMemImportFromShareableHandle"]
        assert len(calls) == 2, "the trial's at opening, and ours"
        assert (shared in calls[1].arguments.values()) == by_value


LIMITED = """
import resource
from vmmcache import ExtensibleTensor, OutOfDeviceMemory, open_driver
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
driver = open_driver("hip:0")
tensor = ExtensibleTensor(4 << 30, driver, chunk=2 << 20)
try:
    tensor.commit(600 << 21)
except OutOfDeviceMemory as error:
    print(error.cure)
print(tensor.committed_bytes >> 21, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
tensor.close()
"""


def test_descriptors_are_made_room_for(tmp_path: Path) -> None:
    """D14: 7.14 takes a descriptor for each allocation; the soft limit is raised as far as the hard one lets."""
    emulator = Emulator("hip", "hip-7.14", journal=tmp_path / "journal", dirty=0)
    assert clean(emulator, LIMITED.format(soft=256, hard=4096)) == "600 1024\n"


def test_without_room_for_descriptors_the_error_says_so(tmp_path: Path) -> None:
    """D14: the runtime says out of memory, and means descriptors."""
    emulator = Emulator("hip", "hip-7.14", journal=tmp_path / "journal", dirty=0)
    told = clean(emulator, LIMITED.format(soft=256, hard=512))
    assert told.startswith("Raise the limit of open files (`ulimit -n`")
    assert told.endswith("\n0 512\n")


@pytest.mark.parametrize("product", ["hip-7-versioned", "hip-6-versioned"])
def test_a_library_that_has_only_a_versioned_name_is_found(product: str, tmp_path: Path) -> None:
    """D8: by ROCM_PATH, or by the linker; the bindings would find neither."""
    emulator = Emulator("hip", "hip-10.0", product=product, journal=tmp_path / "journal")
    script = (
        "from vmmcache import open_driver; import os; print(open_driver('hip:0').device, os.environ.get('ROCM_PATH'))"
    )
    root = emulator.env["ROCM_PATH"]
    assert clean(emulator, script) == f"hip:0 {root}\n"
    assert clean(emulator, script, ROCM_PATH="") == "hip:0 \n"
    assert clean(emulator, script, ROCM_PATH="", ROCM_HOME=root, LD_LIBRARY_PATH="") == "hip:0 \n"


def test_a_device_that_there_is_not_is_named(tmp_path: Path) -> None:
    emulator = Emulator("hip", "hip-10.0", devices=8, journal=tmp_path / "journal")
    script = """
from vmmcache import DriverUnavailable, open_driver
print(*(open_driver(f"hip:{index}").device for index in range(8)))
for index in (8, 10**12):
    try:
        open_driver(f"hip:{index}")
    except DriverUnavailable as error:
        print(error.reason)
"""
    names = " ".join(f"hip:{index}" for index in range(8))
    reasons = "".join(f"there is no device {index}; the runtime finds 8\n" for index in (8, 10**12))
    assert clean(emulator, script) == f"{names}\n{reasons}"
