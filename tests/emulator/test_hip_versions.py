"""What each HIP runtime does differently (facts 2.2 and 2.4): A = 6.4, B = 7.0 and 7.2, C = 7.14 and 10.0."""

from __future__ import annotations

import ctypes
import os
import signal

import pytest

from tests.emulator.conftest import Load
from tests.emulator.control import Emulator
from tests.emulator.direct import HOST, MIB2, POSIX_FD, Library, Properties, buffer, peek, properties
from tests.emulator.test_memory import death_of

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, NOT_SUPPORTED, UNKNOWN = 1, 2, 101, 801, 999
VERSIONS = ("hip-6.4", "hip-7.0", "hip-7.2", "hip-7.12", "hip-7.14", "hip-10.0")


@pytest.fixture(params=VERSIONS)
def profile(request: pytest.FixtureRequest) -> str:
    """Every version."""
    return str(request.param)


@pytest.fixture
def hip(load: Load, profile: str) -> Library:
    """A library of that version."""
    return load(profile)


def since(profile: str, version: str) -> bool:
    return VERSIONS.index(profile) >= VERSIONS.index(version)


def test_version_integers(hip: Library, profile: str) -> None:
    """Facts 2.2: major * 10^7 + minor * 10^5 + patch, and ROCm 10.0 ships HIP 7.15."""
    code, number = hip.get("hipRuntimeGetVersion")
    expected = {"hip-6.4": (6, 4), "hip-7.0": (7, 0), "hip-7.2": (7, 2), "hip-7.12": (7, 12), "hip-7.14": (7, 14)}
    assert code == 0
    assert divmod(number // 100000, 100) == expected.get(profile, (7, 15))


def test_granularity(hip: Library, profile: str) -> None:
    """[I] #9360, #1176: 4 KiB for both up to 7.2, 2 MiB recommended from 7.11."""
    recommended = MIB2 if since(profile, "hip-7.12") else 4096
    assert hip.get("hipMemGetAllocationGranularity", properties(), 0) == (0, 4096)
    assert hip.get("hipMemGetAllocationGranularity", properties(), 1) == (0, recommended)


def test_attributes_that_are_too_new_are_errors(hip: Library, profile: str) -> None:
    """Facts 2.1: 92 came with 7.2, 93 with 7.12, 94 and 95 by 7.14."""
    known = {number: hip.get("hipDeviceGetAttribute", number, 0)[0] == 0 for number in (89, 91, 92, 93, 94, 95, 96)}
    newest = {"hip-6.4": 91, "hip-7.0": 91, "hip-7.2": 92, "hip-7.12": 93}.get(profile, 95)
    assert known == {number: number <= newest for number in known}


def test_reserve_of_nonsense(hip: Library, profile: str) -> None:
    """[S] AddressReserve: A answers out of memory, B and C invalid value."""
    expected = INVALID_VALUE if since(profile, "hip-7.0") else OUT_OF_MEMORY
    assert hip.get("hipMemAddressReserve", 100, 0, 0, 0)[0] == expected


def test_a_device_out_of_range(hip: Library, profile: str) -> None:
    """[S] Create: A 1, B and C 101."""
    expected = INVALID_DEVICE if since(profile, "hip-7.0") else INVALID_VALUE
    assert hip.get("hipMemCreate", MIB2, properties(5), 0)[0] == expected


def test_where_memory_is_created(load: Load, profile: str) -> None:
    """[S] facts 0.10: B and C allocate on the current device, whatever the properties say."""
    hip = load(profile, devices=2)
    hip.create(device=1)
    current = since(profile, "hip-7.0")
    assert (hip.control.used(0), hip.control.used(1)) == ((MIB2, 0) if current else (0, MIB2))
    hip.ok("hipSetDevice", 1)
    hip.create(device=1)
    assert hip.control.used(1) == (MIB2 if current else 2 * MIB2)


def test_memory_on_the_host(hip: Library, profile: str) -> None:
    """Facts 2.2: since 7.2."""
    code, _ = hip.get("hipMemCreate", MIB2, properties(location=HOST), 0)
    assert (code == 0) is since(profile, "hip-7.2")


def test_failed_maps_are_swallowed_before_7_14(hip: Library, profile: str) -> None:
    """[S] Map: success although nothing is mapped; the next SetAccess tells."""
    base, handle = hip.reserve(), hip.create()
    hip.place(base)
    for at in base, base + 8 * MIB2:  # taken; outside
        assert hip("hipMemMap", at, MIB2, 0, handle, 0) == (INVALID_VALUE if since(profile, "hip-7.14") else 0)
    assert hip.control.count("mappings") == 1
    assert hip.access(base + 8 * MIB2, MIB2) == INVALID_VALUE
    assert hip("hipMemMap", base + MIB2, MIB2, 4096, handle, 0) == INVALID_VALUE, "what HIP itself checks is told"


def test_unmapping_several_at_once(hip: Library, profile: str) -> None:
    """[I] ROCR-Runtime#285: A answers success, does nothing, and the addresses can no longer be freed."""
    base = hip.reserve()
    for place in range(3):
        hip.place(base + place * MIB2)
    assert hip("hipMemUnmap", base, 3 * MIB2) == 0
    if since(profile, "hip-7.0"):
        assert hip.control.count("mappings") == 0
        assert hip("hipMemAddressFree", base, 8 * MIB2) == 0
    else:
        assert hip.control.count("mappings") == 3
        assert hip("hipMemAddressFree", base, 8 * MIB2) == UNKNOWN


def test_freeing_addresses_under_a_mapping(hip: Library) -> None:
    """[S] AddressFree: ROCr refuses, HIP answers 999 and has dropped its own object."""
    base = hip.reserve()
    hip.place(base)
    assert hip("hipMemAddressFree", base, 8 * MIB2) == UNKNOWN
    assert hip.control.count("reservations") == 1
    assert len(hip.control.violations()) == 1


def test_freeing_unknown_addresses(hip: Library, profile: str) -> None:
    """[S] AddressFree: A and B follow a NULL pointer."""
    hip.control.set(fork_poison=0)
    expected = 0 if since(profile, "hip-7.12") else signal.SIGSEGV
    assert death_of(lambda: hip("hipMemAddressFree", 1 << 40, MIB2)) == expected
    if expected == 0:
        assert hip("hipMemAddressFree", 1 << 40, MIB2) == INVALID_VALUE


def test_unmapping_where_nothing_is(hip: Library, profile: str) -> None:
    """[S] Unmap: A follows a NULL pointer."""
    hip.control.set(fork_poison=0)
    base = hip.reserve()
    expected = 0 if since(profile, "hip-7.0") else signal.SIGSEGV
    assert hip("hipMemUnmap", 0, MIB2) == hip("hipMemUnmap", base, 0) == INVALID_VALUE, "HIP's own check comes first"
    assert death_of(lambda: hip("hipMemUnmap", base, MIB2)) == expected
    if expected == 0:
        assert hip("hipMemUnmap", base, MIB2) == INVALID_VALUE


def test_memory_is_kept_while_the_addresses_live_on_7_2(hip: Library, profile: str) -> None:
    """[I] legacy-rocm-build#6021, torch_memory_saver#83: back only with AddressFree. Requirement D10."""
    base = hip.reserve()
    handle = hip.commit(base)
    hip.ok("hipMemUnmap", base, MIB2)
    assert hip.control.used(0) == MIB2, "the handle holds it"
    hip.ok("hipMemRelease", handle)
    assert hip.control.used(0) == (MIB2 if profile == "hip-7.2" else 0)
    hip.ok("hipMemAddressFree", base, 8 * MIB2)
    assert hip.control.used(0) == 0


def test_a_value_given_for_an_address_crashes_the_old_import(load: Load) -> None:
    """[S] up to 7.0 osHandle is followed."""
    hip = load("hip-7.0", fork_poison=0)
    assert death_of(lambda: hip("hipMemImportFromShareableHandle", buffer(), 5, POSIX_FD)) == signal.SIGSEGV


def test_6_4_0_gives_nothing_back(load: Load) -> None:
    """[I] hip#3781, repaired in 6.4.2."""
    hip = load("hip-6.4.0")
    hip.ok("hipMemRelease", hip.create())
    assert hip.control.used(0) == MIB2
    assert load("hip-6.4").get("hipRuntimeGetVersion") > hip.get("hipRuntimeGetVersion")


def test_retain(hip: Library, profile: str) -> None:
    """Facts 2.2, 2.4: before 7.12 no reference is added, so retain and release in pairs release too much."""
    base = hip.reserve()
    handle = hip.place(base)
    assert hip.get("hipMemRetainAllocationHandle", base + 5) == (0, handle)
    hip.ok("hipMemRelease", handle)
    assert (hip("hipMemRelease", handle) == 0) is since(profile, "hip-7.12")


def test_import_takes_the_descriptor_or_its_address(hip: Library, profile: str) -> None:
    """[I] rocm-systems#1564: by value from 7.1."""
    descriptor = ctypes.c_int(
        hip.ok_get("hipMemExportToShareableHandle", hip.create(handle_types=POSIX_FD), POSIX_FD, 0)
    )
    by_value = since(profile, "hip-7.2")
    given = descriptor.value if by_value else ctypes.byref(descriptor)
    assert hip.get("hipMemImportFromShareableHandle", given, POSIX_FD)[0] == 0
    os.close(descriptor.value)
    if by_value:
        assert hip.get("hipMemImportFromShareableHandle", ctypes.byref(descriptor), POSIX_FD)[0] == INVALID_VALUE


def test_properties_of_imported_memory(load: Load, profile: str) -> None:
    """Facts 2.4: before 10 the current device is reported."""
    hip = load(profile, devices=2)
    hip.ok("hipSetDevice", 1)
    descriptor = ctypes.c_int(
        hip.ok_get("hipMemExportToShareableHandle", hip.create(device=1, handle_types=POSIX_FD), POSIX_FD, 0)
    )
    hip.ok("hipSetDevice", 0)
    given = descriptor.value if since(profile, "hip-7.2") else ctypes.byref(descriptor)
    answer = Properties()
    hip.ok(
        "hipMemGetAllocationPropertiesFromHandle",
        answer,
        hip.ok_get("hipMemImportFromShareableHandle", given, POSIX_FD),
    )
    os.close(descriptor.value)
    assert answer.location.id == (1 if profile == "hip-10.0" else 0)


def test_the_range_call_came_with_7_0(hip: Library, profile: str) -> None:
    """Facts 2.2."""
    assert hasattr(hip.control, "hipMemGetHandleForAddressRange") is since(profile, "hip-7.0")


def test_the_switch_in_the_environment(profile: str) -> None:
    """[S] HIP_VMEM_MANAGE_SUPPORT=0 forces the attribute to 0. That the calls answer 801 then is assumed."""
    child = Emulator("hip", profile).run(
        "import ctypes, os\n"
        "c = ctypes.CDLL(os.environ['VMMEMU_LIBRARY'])\n"
        "n = ctypes.c_int(-1)\n"
        "p = ctypes.c_uint64()\n"
        "print(c.hipDeviceGetAttribute(ctypes.byref(n), 89, 0), n.value,\n"
        "      c.hipMemAddressReserve(ctypes.byref(p), ctypes.c_uint64(1 << 21), None, None, None))\n",
        HIP_VMEM_MANAGE_SUPPORT="0",
    )
    assert child.stdout == f"0 0 {NOT_SUPPORTED}\n"


def test_a_thread_has_a_device_of_its_own(load: Load) -> None:
    """Facts 2.1: hipSetDevice stands where CUDA has contexts."""
    hip = load("hip-10.0", devices=2)
    assert hip("hipSetDevice", 2) == INVALID_DEVICE
    hip.ok("hipSetDevice", 1)
    assert hip.get("hipGetDevice") == (0, 1)
    hip.control.set(other_use=MIB2)
    hip.create(device=1)
    free = [hip.ok_get("hipMemGetInfo", buffer()) for device in (0, 1) if hip("hipSetDevice", device) == 0]
    assert free[0] - free[1] == MIB2


def test_memory_of_another_device_is_reached_only_when_granted(load: Load) -> None:
    hip = load("hip-7.12", devices=2)
    base = hip.reserve()
    hip.commit(base)
    hip.ok("hipSetDevice", 1)
    assert hip.fill(base, 1, MIB2) == 700
    assert hip.access(base, MIB2, devices=[1]) == 0
    assert hip.fill(base, 1, MIB2) == hip.synchronise() == 0
    assert peek(base) == b"\x01"
