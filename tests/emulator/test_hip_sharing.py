"""Handles that leave the process, dma-buf and pointers, on HIP. [S] facts 2.4."""

from __future__ import annotations

import ctypes
import os

import pytest

from tests.emulator.conftest import Load
from tests.emulator.direct import FABRIC, MIB2, POSIX_FD, Library, Properties, buffer, peek, poke

INVALID_VALUE, OUT_OF_MEMORY, NOT_FOUND, NOT_SUPPORTED = 1, 2, 500, 801


@pytest.fixture
def hip(load: Load) -> Library:
    """The newest runtime."""
    return load("hip-10.0")


def test_an_export_must_match_exactly(hip: Library) -> None:
    """[S] Create, Export."""
    descriptor = ctypes.c_int(-1)
    out = ctypes.byref(descriptor)
    assert hip("hipMemExportToShareableHandle", out, hip.create(), POSIX_FD, 0) == INVALID_VALUE
    assert hip("hipMemExportToShareableHandle", out, hip.create(), 0, 0) == INVALID_VALUE
    assert hip("hipMemExportToShareableHandle", out, hip.create(handle_types=POSIX_FD), POSIX_FD, 0) == 0
    imported = hip.ok_get("hipMemImportFromShareableHandle", descriptor.value, POSIX_FD)
    answer = Properties()
    hip.ok("hipMemGetAllocationPropertiesFromHandle", answer, imported)
    assert answer.handle_types == POSIX_FD
    assert hip("hipMemImportFromShareableHandle", buffer(), descriptor.value, 2) == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("at", "size", "flags", "code"),
    [
        pytest.param(0, MIB2, 0, 0, id="one allocation"),
        pytest.param(0, 2 * MIB2, 0, INVALID_VALUE, id="two"),
        pytest.param(4 * MIB2, MIB2, 0, INVALID_VALUE, id="a hole"),
        pytest.param(0, 0, 0, INVALID_VALUE, id="nothing"),
        pytest.param(0, MIB2, 2, INVALID_VALUE, id="flags"),
    ],
)
def test_dmabuf(hip: Library, at: int, size: int, flags: int, code: int) -> None:
    """[S] GetHandleForAddressRange: one allocation as far as is known."""
    base = hip.reserve()
    hip.commit(base)
    hip.commit(base + MIB2)
    descriptor = ctypes.c_int(-1)
    assert hip("hipMemGetHandleForAddressRange", ctypes.byref(descriptor), base + at, size, 1, flags) == code
    assert (descriptor.value >= 0) is (code == 0)


def test_nonsense_is_not_exported(hip: Library) -> None:
    handle = hip.create(handle_types=POSIX_FD)
    assert hip("hipMemExportToShareableHandle", None, handle, POSIX_FD, 0) == INVALID_VALUE
    assert hip("hipMemExportToShareableHandle", buffer(), handle, POSIX_FD, 1) == INVALID_VALUE
    assert hip("hipMemExportToShareableHandle", buffer(), 0x1240, POSIX_FD, 0) == INVALID_VALUE
    assert hip("hipMemImportFromShareableHandle", None, 0, POSIX_FD) == INVALID_VALUE
    assert hip("hipMemImportFromShareableHandle", buffer(), 999999, POSIX_FD) == INVALID_VALUE


def test_no_descriptor_left_is_out_of_memory(hip: Library, few_descriptors: int) -> None:
    """[?] which code; the limit is the process's."""
    base = hip.reserve()
    handle = hip.commit(base, handle_types=POSIX_FD)
    descriptor, taken = ctypes.c_int(), set()
    out = ctypes.byref(descriptor)
    while hip("hipMemExportToShareableHandle", out, handle, POSIX_FD, 0) == 0:
        taken.add(descriptor.value)
        assert len(taken) < 1000
    assert hip("hipMemExportToShareableHandle", out, handle, POSIX_FD, 0) == OUT_OF_MEMORY
    assert hip("hipMemGetHandleForAddressRange", out, base, MIB2, 1, 0) == OUT_OF_MEMORY
    for number in taken:
        os.close(number)
    assert taken


def test_fabric_handles_came_with_7_14(load: Load) -> None:
    """Facts 2.1, 2.4."""
    for profile, code in ("hip-7.12", NOT_SUPPORTED), ("hip-7.14", 0):
        hip = load(profile, fabric_code=0)
        assert hip.get("hipMemImportFromShareableHandle", None, FABRIC)[0] == (code or INVALID_VALUE)
        if code:
            continue
        base = hip.reserve()
        shared = buffer(64)
        handle = hip.commit(base, handle_types=FABRIC)
        hip.ok("hipMemExportToShareableHandle", shared, handle, FABRIC, 0)
        imported = hip.ok_get("hipMemImportFromShareableHandle", shared, FABRIC)
        hip.ok("hipMemMap", base + MIB2, MIB2, 0, imported, 0)
        assert hip.access(base + MIB2, MIB2) == 0
        poke(base, b"fabric")
        assert peek(base + MIB2, 6) == b"fabric"


def test_a_dmabuf_where_the_platform_has_none(load: Load) -> None:
    hip = load("hip-10.0", dmabuf_attr=0)
    base = hip.reserve()
    hip.commit(base)
    assert hip("hipMemGetHandleForAddressRange", buffer(), base, MIB2, 1, 0) == NOT_SUPPORTED
    old = load("hip-7.0")
    base = old.reserve()
    old.commit(base)
    assert old("hipMemGetHandleForAddressRange", buffer(), base, MIB2, 1, 1) == INVALID_VALUE
    assert old("hipMemGetHandleForAddressRange", buffer(), base, MIB2, 2, 0) == INVALID_VALUE


def test_what_a_pointer_says_of_itself(hip: Library) -> None:
    """Facts 2.1: the numbers are CUDA's up to 17."""
    base = hip.reserve()
    hip.commit(base + MIB2, 2 * MIB2, handle_types=POSIX_FD, rdma=1)
    expected = {2: 2, 9: 0, 10: 0, 11: base, 12: 8 * MIB2, 13: 1, 14: POSIX_FD, 15: 1, 16: 3}
    inside = base + MIB2 + 99
    assert {number: hip.get("hipPointerGetAttribute", number, inside) for number in expected} == {
        number: (0, value) for number, value in expected.items()
    }
    assert hip.get("hipPointerGetAttribute", 18, inside)[0] == INVALID_VALUE
    assert hip.get("hipPointerGetAttribute", 2, base)[0] == INVALID_VALUE
    size = ctypes.c_uint64()
    assert hip.get("hipMemGetAddressRange", ctypes.byref(size), inside) == (0, base + MIB2)
    assert size.value == 2 * MIB2
    assert hip.get("hipMemGetAddressRange", None, base)[0] == NOT_FOUND
    about = (ctypes.c_int * 8)()
    hip.ok("hipPointerGetAttributes", about, inside)
    assert tuple(about[:2]) == (2, 0)
    assert hip("hipPointerGetAttributes", about, base) == INVALID_VALUE
