"""The documented rules of the CUDA calls, one by one. [H] stands for the text of cuda.h 13.0 on the call named."""

from __future__ import annotations

import ctypes

import pytest

from tests.emulator.direct import (
    FABRIC,
    HOST,
    MIB2,
    POSIX_FD,
    Library,
    Properties,
    properties,
)

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, NOT_SUPPORTED = 1, 2, 101, 801


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param((MIB2, 0, 0, 0), 0, id="a granule"),
        pytest.param((4096, 0, 0, 0), 0, id="the host's page is the unit, not the granularity"),
        pytest.param((4095, 0, 0, 0), INVALID_VALUE, id="less than a page"),
        pytest.param((0, 0, 0, 0), INVALID_VALUE, id="nothing"),
        pytest.param((MIB2, 3 << 20, 0, 0), INVALID_VALUE, id="alignment no power of two"),
        pytest.param((MIB2, 64 << 20, 0, 0), 0, id="alignment a power of two"),
        pytest.param((MIB2, 0, 4097, 0), INVALID_VALUE, id="hint inside a page"),
        pytest.param((MIB2, 0, 0, 1), INVALID_VALUE, id="flags"),
        pytest.param((1 << 47, 0, 0, 0), OUT_OF_MEMORY, id="more than there is"),
    ],
)
def test_reserve(cuda: Library, arguments: tuple[int, ...], code: int) -> None:
    """[H] cuMemAddressReserve."""
    assert cuda.get("cuMemAddressReserve", *arguments)[0] == code


def test_reserve_aligns_as_asked_and_at_least_to_a_granule(cuda: Library) -> None:
    """[H] cuMemAddressReserve; the default alignment is assumed (facts 1.2), PyTorch, vLLM and UCX rely on it."""
    assert cuda.reserve() % MIB2 == 0
    assert cuda.ok_get("cuMemAddressReserve", MIB2, 1 << 30, 0, 0) % (1 << 30) == 0


def test_a_hint_is_taken_where_it_is_free_and_ignored_where_it_is_not(cuda: Library) -> None:
    """[H] cuMemAddressReserve: the address is a hint."""
    base = cuda.reserve(4 * MIB2)
    assert cuda.ok_get("cuMemAddressReserve", MIB2, 0, base, 0) != base
    cuda.ok("cuMemAddressFree", base, 4 * MIB2)
    assert cuda.ok_get("cuMemAddressReserve", 4 * MIB2, 0, base, 0) == base


def test_a_stack_may_refuse_every_alignment_but_none(cuda: Library) -> None:
    """A knob, for what vllm#43022 reports of HIP."""
    cuda.control.set(reserve_aligned_code=OUT_OF_MEMORY)
    assert cuda.get("cuMemAddressReserve", MIB2, MIB2, 0, 0)[0] == OUT_OF_MEMORY
    assert cuda.get("cuMemAddressReserve", MIB2, 0, 0, 0)[0] == 0


def test_addresses_are_freed_exactly_as_they_were_reserved(cuda: Library) -> None:
    """[H] cuMemAddressFree: pointer and size must both match."""
    base = cuda.reserve(4 * MIB2)
    assert cuda("cuMemAddressFree", base, 2 * MIB2) == INVALID_VALUE
    assert cuda("cuMemAddressFree", base + MIB2, 4 * MIB2) == INVALID_VALUE
    assert cuda("cuMemAddressFree", base, 4 * MIB2) == 0
    assert cuda("cuMemAddressFree", base, 4 * MIB2) == INVALID_VALUE


def test_addresses_under_a_mapping_are_not_freed(cuda: Library) -> None:
    """[?] undocumented, facts 1.2: refused, and recorded as a caller's mistake."""
    base = cuda.reserve()
    cuda.place(base)
    assert cuda("cuMemAddressFree", base, 8 * MIB2) == INVALID_VALUE
    assert cuda.control.violations() == [f"addresses at {base:#x} freed while memory is mapped there"]


@pytest.mark.parametrize(
    ("size", "prop", "flags", "code"),
    [
        pytest.param(MIB2, properties(), 0, 0, id="a granule"),
        pytest.param(MIB2 + 4096, properties(), 0, INVALID_VALUE, id="no multiple of the granularity"),
        pytest.param(0, properties(), 0, INVALID_VALUE, id="nothing"),
        pytest.param(MIB2, properties(), 1, INVALID_VALUE, id="flags"),
        pytest.param(MIB2, None, 0, INVALID_VALUE, id="no properties"),
        pytest.param(MIB2, properties(type_=0), 0, INVALID_VALUE, id="no type"),
        pytest.param(MIB2, properties(2), 0, INVALID_DEVICE, id="no such device"),
        pytest.param(MIB2, properties(-1), 0, INVALID_DEVICE, id="no device at all"),
        pytest.param(MIB2, properties(99, location=HOST), 0, 0, id="host: the id is ignored"),
        pytest.param(
            MIB2, properties(location=HOST, handle_types=POSIX_FD), 0, INVALID_VALUE, id="host: not shareable"
        ),
        pytest.param(MIB2, properties(location=4), 0, INVALID_VALUE, id="current NUMA node"),
        pytest.param(MIB2, properties(location=7), 0, INVALID_VALUE, id="no such location"),
        pytest.param(MIB2, properties(handle_types=POSIX_FD), 0, 0, id="a file descriptor"),
        pytest.param(MIB2, properties(handle_types=2), 0, NOT_SUPPORTED, id="Windows' handle"),
        pytest.param(MIB2, properties(handle_types=64), 0, INVALID_VALUE, id="no such handle"),
        pytest.param(MIB2, properties(handle_types=FABRIC), 0, NOT_SUPPORTED, id="fabric where there is none"),
        pytest.param(32 << 30, properties(), 0, OUT_OF_MEMORY, id="more than the device has"),
    ],
)
def test_create(cuda: Library, size: int, prop: Properties | None, flags: int, code: int) -> None:
    """[H] cuMemCreate."""
    cuda.control.set(devices=2, dirty=0)
    assert cuda.get("cuMemCreate", size, prop, flags)[0] == code


def test_the_granularity_call_wants_properties_that_create_would_take(cuda: Library) -> None:
    """[H] cuMemGetAllocationGranularity."""
    assert cuda.get("cuMemGetAllocationGranularity", properties(), 0) == (0, MIB2)
    assert cuda.get("cuMemGetAllocationGranularity", properties(), 1) == (0, MIB2)
    assert cuda.get("cuMemGetAllocationGranularity", properties(), 2)[0] == INVALID_VALUE
    assert cuda.get("cuMemGetAllocationGranularity", properties(1), 0)[0] == INVALID_DEVICE
    assert cuda.get("cuMemGetAllocationGranularity", None, 0)[0] == INVALID_VALUE


@pytest.mark.parametrize(
    ("at", "size", "offset", "flags", "code"),
    [
        pytest.param(0, 2 * MIB2, 0, 0, 0, id="all of it"),
        pytest.param(0, MIB2, 0, 0, 0, id="its beginning"),
        pytest.param(6 * MIB2, 2 * MIB2, 0, 0, 0, id="up to the reservation's end"),
        pytest.param(7 * MIB2, 2 * MIB2, 0, 0, INVALID_VALUE, id="past the reservation's end"),
        pytest.param(-MIB2, 2 * MIB2, 0, 0, INVALID_VALUE, id="before the reservation"),
        pytest.param(4096, 2 * MIB2, 0, 0, INVALID_VALUE, id="address off the granularity"),
        pytest.param(0, 4096, 0, 0, INVALID_VALUE, id="size off the granularity"),
        pytest.param(0, 0, 0, 0, INVALID_VALUE, id="nothing"),
        pytest.param(0, MIB2, MIB2, 0, INVALID_VALUE, id="offset: currently must be zero"),
        pytest.param(0, 4 * MIB2, 0, 0, INVALID_VALUE, id="more than the allocation"),
        pytest.param(0, 2 * MIB2, 0, 1, INVALID_VALUE, id="flags"),
    ],
)
def test_map(cuda: Library, at: int, size: int, offset: int, flags: int, code: int) -> None:
    """[H] cuMemMap."""
    assert cuda("cuMemMap", cuda.reserve() + at, size, offset, cuda.create(2 * MIB2), flags) == code


def test_map_wants_a_range_without_a_mapping_and_a_handle_that_lives(cuda: Library) -> None:
    """[H] cuMemMap: only on ranges that are not currently mapped."""
    base = cuda.reserve()
    handle = cuda.place(base + MIB2, 2 * MIB2)
    for at in 0, MIB2, 2 * MIB2:
        assert cuda("cuMemMap", base + at, 2 * MIB2, 0, cuda.create(2 * MIB2), 0) == INVALID_VALUE
    cuda.ok("cuMemRelease", handle)
    assert cuda("cuMemMap", base + 4 * MIB2, 2 * MIB2, 0, handle, 0) == INVALID_VALUE


def test_one_allocation_may_be_mapped_at_several_places(cuda: Library) -> None:
    """Facts 1.2, cuMemMap."""
    base = cuda.reserve()
    handle = cuda.place(base)
    cuda.ok("cuMemMap", base + MIB2, MIB2, 0, handle, 0)
    assert cuda.access(base, 2 * MIB2) == 0
    ctypes.memmove(base, b"alias", 5)
    assert ctypes.string_at(base + MIB2, 5) == b"alias"


def test_memory_lives_until_its_last_handle_and_its_last_mapping_are_gone(cuda: Library) -> None:
    """[H] cuMemRelease: may come before unmap."""
    base = cuda.reserve()
    handle = cuda.commit(base)
    cuda.ok("cuMemRelease", handle)
    ctypes.memmove(base, b"still", 5)
    assert ctypes.string_at(base, 5) == b"still"
    assert cuda.control.used(0) == MIB2
    cuda.ok("cuMemUnmap", base, MIB2)
    assert cuda.control.used(0) == 0


def test_a_second_release_is_refused_and_remembered(cuda: Library) -> None:
    """[H] cuMemRelease of an invalid handle is undefined; facts 1.2 want 1, and a flag."""
    handle = cuda.create()
    cuda.ok("cuMemRelease", handle)
    assert cuda("cuMemRelease", handle) == INVALID_VALUE
    assert cuda("cuMemRelease", 0xABC0) == INVALID_VALUE
    again = cuda.create()
    assert again != handle, "a released handle must not be taken for a new one"
    assert cuda.control.violations() == [f"handle {handle:#x} released twice", "unknown handle 0xabc0 released"]


def test_retain_finds_the_handle_behind_an_address(cuda: Library) -> None:
    """[H] cuMemRetainAllocationHandle: the same value, any address inside, a release for each."""
    base = cuda.reserve()
    handle = cuda.place(base)
    assert cuda.get("cuMemRetainAllocationHandle", base + 12345) == (0, handle)
    assert cuda.get("cuMemRetainAllocationHandle", base + MIB2)[0] == INVALID_VALUE
    cuda.ok("cuMemRelease", handle)
    cuda.ok("cuMemRelease", handle)
    assert cuda.get("cuMemRetainAllocationHandle", base) == (0, handle), "a mapping is enough to find it again"


def test_properties_are_read_back(cuda: Library) -> None:
    """[H] cuMemGetAllocationPropertiesFromHandle."""
    cuda.control.set(devices=2)
    handle = cuda.create(device=1, handle_types=POSIX_FD, rdma=1)
    answer = Properties()
    cuda.ok("cuMemGetAllocationPropertiesFromHandle", answer, handle)
    assert bytes(answer) == bytes(properties(1, handle_types=POSIX_FD, rdma=1))
    assert cuda("cuMemGetAllocationPropertiesFromHandle", answer, 0x1234) == INVALID_VALUE
