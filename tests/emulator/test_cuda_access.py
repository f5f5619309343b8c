"""Granting, unmapping and reading back access on CUDA. [H] stands for the text of cuda.h 13.0 on the call named."""

from __future__ import annotations

import pytest

from tests.emulator.direct import MIB2, READ_WRITE, Access, Library, Location

INVALID_VALUE, INVALID_DEVICE = 1, 101


@pytest.mark.parametrize(
    ("at", "size", "code"),
    [
        pytest.param(0, 2 * MIB2, 0, id="the first mapping"),
        pytest.param(2 * MIB2, MIB2, 0, id="the second"),
        pytest.param(0, 3 * MIB2, 0, id="a run of both"),
        pytest.param(2 * MIB2, 2 * MIB2, INVALID_VALUE, id="a mapping and the hole behind it"),
        pytest.param(0, 5 * MIB2, INVALID_VALUE, id="over the hole"),
        pytest.param(0, MIB2, INVALID_VALUE, id="part of a mapping"),
        pytest.param(MIB2, 2 * MIB2, INVALID_VALUE, id="from inside a mapping"),
        pytest.param(3 * MIB2, MIB2, INVALID_VALUE, id="the hole"),
        pytest.param(0, 0, INVALID_VALUE, id="nothing"),
        pytest.param(4 * MIB2, 8 * MIB2, INVALID_VALUE, id="past the reservation"),
    ],
)
@pytest.mark.parametrize("verb", ["grant", "unmap"])
def test_grant_and_unmap_take_runs_of_whole_mappings(cuda: Library, verb: str, at: int, size: int, code: int) -> None:
    """[H] cuMemSetAccess: "containing all allocations"; cuMemUnmap: no sub-range. Several whole ones: llama.cpp."""
    base = cuda.reserve()
    for place, length in (0, 2), (2, 1), (4, 1):
        cuda.place(base + place * MIB2, length * MIB2)
    verdict = cuda.access(base + at, size) if verb == "grant" else cuda("cuMemUnmap", base + at, size)
    assert verdict == code
    assert cuda.control.count("mappings") == 3 - (code == 0 and verb == "unmap") * (2 if size == 3 * MIB2 else 1)


def test_lenient_access_takes_part_of_a_mapping(cuda: Library) -> None:
    """[?] cuMemSetAccess on a part: the text reads as not allowed, facts 1.2 want both."""
    base = cuda.reserve()
    cuda.place(base, 2 * MIB2)
    assert cuda.access(base, MIB2) == INVALID_VALUE
    cuda.control.set(strict_access=0)
    assert cuda.access(base, MIB2) == 0
    assert cuda.access(base, 3 * MIB2) == INVALID_VALUE
    assert cuda.access(base, 4096) == INVALID_VALUE


@pytest.mark.parametrize(
    ("access", "count", "code"),
    [
        pytest.param(Access(Location(1, 0), READ_WRITE), 1, 0, id="read and write"),
        pytest.param(Access(Location(1, 0), 1), 1, 0, id="read"),
        pytest.param(Access(Location(1, 0), 0), 1, 0, id="none"),
        pytest.param(Access(Location(1, 0), 2), 1, INVALID_VALUE, id="no such flags"),
        pytest.param(Access(Location(1, 5), READ_WRITE), 1, INVALID_DEVICE, id="no such device"),
        pytest.param(Access(Location(2, 0), READ_WRITE), 1, INVALID_VALUE, id="the host"),
        pytest.param(Access(Location(3, 0), READ_WRITE), 1, INVALID_VALUE, id="a NUMA node, memory on a device"),
        pytest.param(Access(Location(0, 0), READ_WRITE), 1, INVALID_VALUE, id="no location"),
        pytest.param(Access(Location(1, 0), READ_WRITE), 0, INVALID_VALUE, id="none of them"),
        pytest.param(None, 1, INVALID_VALUE, id="no description"),
    ],
)
def test_descriptions_of_access(cuda: Library, access: Access | None, count: int, code: int) -> None:
    """[H] cuMemSetAccess."""
    base = cuda.reserve()
    cuda.place(base)
    assert cuda("cuMemSetAccess", base, MIB2, access, count) == code


def test_reading_only_may_be_refused(cuda: Library) -> None:
    """[?] cuMemSetAccess lists NOT_SUPPORTED and does not say what for."""
    base = cuda.reserve()
    cuda.place(base)
    cuda.control.set(read_only_code=801)
    assert cuda("cuMemSetAccess", base, MIB2, Access(Location(1, 0), 1), 1) == 801
    assert cuda.access(base, MIB2) == 0


def test_access_begins_at_none_is_read_back_and_ends_with_the_mapping(cuda: Library) -> None:
    """[H] cuMemMap, cuMemGetAccess; cuMemUnmap: "all mappings start with no accessibility"."""
    base = cuda.reserve()
    handle = cuda.place(base)
    here = Location(1, 0)
    assert cuda.get("cuMemGetAccess", here, base) == (0, 0)
    assert cuda.access(base, MIB2) == 0
    assert cuda.get("cuMemGetAccess", here, base + MIB2 - 1) == (0, READ_WRITE)
    assert cuda.get("cuMemGetAccess", Location(1, 9), base)[0] == INVALID_DEVICE
    cuda.ok("cuMemUnmap", base, MIB2)
    assert cuda.get("cuMemGetAccess", here, base)[0] == INVALID_VALUE
    cuda.ok("cuMemMap", base, MIB2, 0, handle, 0)
    assert cuda.get("cuMemGetAccess", here, base) == (0, 0)


def test_access_is_set_for_all_devices_or_for_none(cuda: Library) -> None:
    """[?] cuMemSetAccess: not said; HIP's is one after the other (facts 2.4)."""
    cuda.control.set(devices=2)
    base = cuda.reserve()
    cuda.place(base)
    assert cuda.access(base, MIB2, devices=[0, 7]) == INVALID_DEVICE
    assert cuda.get("cuMemGetAccess", Location(1, 0), base) == (0, 0)
    assert cuda.access(base, MIB2, devices=[0, 1]) == 0
