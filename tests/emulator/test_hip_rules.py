"""The rules of HIP's VMM calls on the newest runtime. [S] facts 2.4, read in clr's and ROCr's sources."""

from __future__ import annotations

import ctypes

import pytest

from tests.emulator.conftest import Load
from tests.emulator.direct import (
    FABRIC,
    HOST,
    MIB2,
    POSIX_FD,
    Access,
    Library,
    Location,
    Properties,
    buffer,
    peek,
    poke,
    properties,
)

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_DEVICE, NOT_SUPPORTED = 1, 2, 100, 101, 801


@pytest.fixture
def hip(load: Load) -> Library:
    """The newest runtime."""
    return load("hip-10.0")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param((MIB2, 0, 0, 0), 0, id="a granule"),
        pytest.param((4096, 0, 0, 0), 0, id="a page"),
        pytest.param((4095, 0, 0, 0), INVALID_VALUE, id="less than a page"),
        pytest.param((0, 0, 0, 0), INVALID_VALUE, id="nothing"),
        pytest.param((MIB2, 3 << 20, 0, 0), INVALID_VALUE, id="alignment no power of two"),
        pytest.param((MIB2, 0, 0, 1), INVALID_VALUE, id="flags"),
        pytest.param((1 << 47, 0, 0, 0), OUT_OF_MEMORY, id="more than there is"),
    ],
)
def test_reserve(hip: Library, arguments: tuple[int, ...], code: int) -> None:
    """[S] AddressReserve."""
    assert hip.get("hipMemAddressReserve", *arguments)[0] == code


def test_a_hint_is_tried_first(hip: Library) -> None:
    """[S] AddressReserve: falls back elsewhere without an error. Requirement D10 re-reserves the same address."""
    base = hip.reserve()
    assert hip.ok_get("hipMemAddressReserve", 8 * MIB2, 0, base, 0) != base
    hip.ok("hipMemAddressFree", base, 8 * MIB2)
    assert hip.ok_get("hipMemAddressReserve", 8 * MIB2, 0, base, 0) == base


def test_a_stack_may_refuse_every_alignment_but_none(load: Load) -> None:
    """[I] vllm#43022: retry with 0."""
    hip = load("hip-7.2", reserve_aligned_code=OUT_OF_MEMORY)
    assert hip.get("hipMemAddressReserve", MIB2, MIB2, 0, 0)[0] == OUT_OF_MEMORY
    assert hip.get("hipMemAddressReserve", MIB2, 0, 0, 0)[0] == 0


def test_the_size_of_what_is_freed_is_not_looked_at_but_remembered(hip: Library) -> None:
    """[S] AddressFree: only 0 is refused. Invariant I2 wants exactly what was reserved."""
    base = hip.reserve()
    assert hip("hipMemAddressFree", base, 0) == INVALID_VALUE
    assert hip("hipMemAddressFree", base, MIB2) == 0
    assert hip.control.violations() == [f"addresses at {base:#x} freed as {MIB2} bytes, reserved as {8 * MIB2}"]
    assert hip("hipMemAddressFree", base, 8 * MIB2) == INVALID_VALUE


@pytest.mark.parametrize(
    ("size", "prop", "flags", "code"),
    [
        pytest.param(MIB2, properties(), 0, 0, id="a granule"),
        pytest.param(4096, properties(), 0, 0, id="a page"),
        pytest.param(2048, properties(), 0, OUT_OF_MEMORY, id="half a page passes HIP, not ROCr"),
        pytest.param(1024, properties(), 0, INVALID_VALUE, id="a quarter does not pass HIP"),
        pytest.param(0, properties(), 0, INVALID_VALUE, id="nothing"),
        pytest.param(MIB2, properties(), 1, INVALID_VALUE, id="flags"),
        pytest.param(MIB2, None, 0, INVALID_VALUE, id="no properties"),
        pytest.param(MIB2, properties(type_=2), 0, INVALID_VALUE, id="managed"),
        pytest.param(MIB2, properties(type_=0x40000000), 0, 0, id="uncached, AMD's own"),
        pytest.param(MIB2, properties(5), 0, INVALID_DEVICE, id="no such device"),
        pytest.param(MIB2, properties(location=3), 0, INVALID_VALUE, id="a NUMA node"),
        pytest.param(MIB2, properties(location=HOST), 0, 0, id="the host"),
        pytest.param(MIB2, properties(handle_types=POSIX_FD), 0, 0, id="a file descriptor"),
        pytest.param(MIB2, properties(handle_types=POSIX_FD | FABRIC), 0, NOT_SUPPORTED, id="two kinds at once"),
        pytest.param(MIB2, properties(handle_types=FABRIC), 0, NOT_SUPPORTED, id="fabric where there is none"),
        pytest.param(MIB2, properties(handle_types=2), 0, NOT_SUPPORTED, id="Windows'"),
        pytest.param(32 << 30, properties(), 0, OUT_OF_MEMORY, id="more than the device has"),
    ],
)
def test_create(hip: Library, size: int, prop: Properties | None, flags: int, code: int) -> None:
    """[S] Create."""
    assert hip.get("hipMemCreate", size, prop, flags)[0] == code


@pytest.mark.parametrize(
    ("at", "size", "offset", "flags", "code"),
    [
        pytest.param(0, 2 * MIB2, 0, 0, 0, id="all of it"),
        pytest.param(4096, MIB2, 0, 0, 0, id="a page is the unit"),
        pytest.param(0, MIB2 + 100, 0, 0, INVALID_VALUE, id="size inside a page"),
        pytest.param(0, MIB2, MIB2, 0, INVALID_VALUE, id="offset"),
        pytest.param(0, 4 * MIB2, 0, 0, INVALID_VALUE, id="more than the allocation"),
        pytest.param(7 * MIB2, 2 * MIB2, 0, 0, INVALID_VALUE, id="past the reservation's end"),
        pytest.param(0, MIB2, 0, 1, INVALID_VALUE, id="flags"),
        pytest.param(0, 0, 0, 0, INVALID_VALUE, id="nothing"),
    ],
)
def test_map(hip: Library, at: int, size: int, offset: int, flags: int, code: int) -> None:
    """[S] Map, version C: real errors."""
    assert hip("hipMemMap", hip.reserve() + at, size, offset, hip.create(2 * MIB2), flags) == code


@pytest.mark.parametrize(
    ("at", "size", "code"),
    [
        pytest.param(0, 2 * MIB2, 0, id="the first mapping"),
        pytest.param(0, 3 * MIB2, 0, id="a run"),
        pytest.param(2 * MIB2, 2 * MIB2, INVALID_VALUE, id="a mapping and a hole"),
        pytest.param(0, MIB2, INVALID_VALUE, id="part of a mapping"),
        pytest.param(MIB2, 2 * MIB2, 0, id="an address inside stands for the mapping's start"),
        pytest.param(3 * MIB2, MIB2, INVALID_VALUE, id="a hole"),
        pytest.param(0, 0, INVALID_VALUE, id="nothing"),
    ],
)
def test_unmap(hip: Library, at: int, size: int, code: int) -> None:
    """[S] Unmap, versions B and C."""
    base = hip.reserve()
    for place, length in (0, 2), (2, 1), (4, 1):
        hip.place(base + place * MIB2, length * MIB2)
    assert hip("hipMemUnmap", base + at, size) == code


def test_release(hip: Library) -> None:
    """[S] Release: NULL is refused; a second release would be a use after free, and is remembered."""
    base = hip.reserve()
    handle = hip.commit(base)
    hip.ok("hipMemRelease", handle)
    poke(base, b"released while mapped")
    assert peek(base, 8) == b"released"
    assert hip("hipMemRelease", handle) == INVALID_VALUE
    assert hip("hipMemRelease", 0) == INVALID_VALUE
    assert hip.control.violations() == [f"handle {handle:#x} released twice"]


def test_what_is_not_granted_on_all_devices_stays_as_far_as_it_came(hip: Library) -> None:
    """[S] SetAccess: one call for each description, not atomic."""
    hip.control.set(devices=2)
    base = hip.reserve()
    hip.place(base)
    assert hip.access(base, MIB2, devices=[0, 7]) == INVALID_DEVICE
    assert hip.get("hipMemGetAccess", Location(1, 0), base) == (0, 3)


@pytest.mark.parametrize("flags", [2, 4])
def test_strange_access_is_refused(hip: Library, flags: int) -> None:
    """[S] SetAccess: unknown flags."""
    base = hip.reserve()
    hip.place(base)
    assert hip("hipMemSetAccess", base, MIB2, Access(Location(1, 0), flags), 1) == INVALID_VALUE
    assert hip("hipMemSetAccess", base, MIB2, None, 1) == INVALID_VALUE
    assert hip("hipMemSetAccess", base, MIB2, Access(Location(1, 0), 3), 0) == INVALID_VALUE


def test_arrays_are_never_supported(hip: Library) -> None:
    """Facts 2.1."""
    assert hip("hipMemMapArrayAsync", None, 0, 0) == NOT_SUPPORTED


def test_without_a_device(load: Load) -> None:
    """[T] a real 5.2 library without a device."""
    hip = load("hip-no-device")
    assert hip("hipInit", 0) == INVALID_DEVICE
    assert hip.get("hipGetDeviceCount") == (NO_DEVICE, 0)
    assert hip.get("hipRuntimeGetVersion") == hip.get("hipDriverGetVersion") == (0, 71526333)
    assert hip.get("hipMemAddressReserve", MIB2, 0, 0, 0)[0] == INVALID_DEVICE
    assert hip.get("hipMemGetAllocationGranularity", properties(), 0)[0] == INVALID_DEVICE
    assert hip("hipSetDevice", 0) == INVALID_DEVICE
    assert hip("hipMemGetInfo", buffer(), buffer()) == INVALID_DEVICE


def test_the_last_failure_stays_behind_in_the_thread(hip: Library) -> None:
    """[I] vllm#36651: a stale error code is found by whoever asks next."""
    assert hip("hipMemRelease", 0) == INVALID_VALUE
    hip.create()
    assert hip("hipPeekAtLastError") == INVALID_VALUE
    assert hip("hipGetLastError") == INVALID_VALUE
    assert hip("hipGetLastError") == 0


def test_names_of_errors_are_the_answer(hip: Library) -> None:
    """Facts 2.1: hipGetErrorName returns the string, not a status."""
    hip.control.hipGetErrorName.restype = ctypes.c_char_p
    assert hip.control.hipGetErrorName(2) == b"hipErrorOutOfMemory"
    assert hip.control.hipGetErrorName(12345) == b"hipErrorUnknown"


@pytest.mark.parametrize(
    ("address", "option", "prop", "code"),
    [
        pytest.param(True, 0, properties(), 0, id="minimum"),
        pytest.param(True, 1, properties(), 0, id="recommended"),
        pytest.param(True, 2, properties(), INVALID_VALUE, id="no such option"),
        pytest.param(False, 0, properties(), INVALID_VALUE, id="no place for the answer"),
        pytest.param(True, 0, properties(7), INVALID_DEVICE, id="no such device"),
        pytest.param(True, 0, None, INVALID_VALUE, id="no properties"),
    ],
)
def test_granularity(hip: Library, address: bool, option: int, prop: Properties | None, code: int) -> None:
    """Facts 3: an out-of-range device answers 101 here too."""
    assert hip("hipMemGetAllocationGranularity", buffer() if address else None, prop, option) == code


def test_knobs_of_calls_that_platforms_refuse(load: Load) -> None:
    hip = load("hip-10.0", gran_code=NOT_SUPPORTED, reserve_code=NOT_SUPPORTED)
    assert hip.get("hipMemGetAllocationGranularity", properties(), 0)[0] == NOT_SUPPORTED
    assert hip.get("hipMemAddressReserve", MIB2, 0, 0, 0)[0] == NOT_SUPPORTED


def test_what_is_asked_of_handles_and_addresses_that_are_not_there(hip: Library) -> None:
    base = hip.reserve()
    handle = hip.place(base)
    hip.ok("hipMemUnmap", base, MIB2)
    assert hip.get("hipMemRetainAllocationHandle", base)[0] == INVALID_VALUE
    assert hip.get("hipMemGetAccess", Location(1, 0), base)[0] == INVALID_VALUE
    hip.ok("hipMemRelease", handle)
    assert hip("hipMemGetAllocationPropertiesFromHandle", Properties(), handle) == INVALID_VALUE
    assert hip("hipMemMap", base, MIB2, 0, handle, 0) == INVALID_VALUE
    assert hip.control.violations() == [f"handle {handle:#x} mapped, which is not there"]


def test_memory_on_the_host_costs_the_device_nothing(hip: Library) -> None:
    hip.create(location=HOST)
    assert hip.control.used(0) == 0
