"""Handles that leave the process, dma-buf, and what a pointer says of itself, on CUDA."""

from __future__ import annotations

import ctypes
import os

import pytest

from tests.emulator.conftest import Load
from tests.emulator.direct import FABRIC, HOST, MIB2, POSIX_FD, Library, Properties, buffer, peek, poke

INVALID_VALUE, NOT_FOUND, NOT_PERMITTED, NOT_SUPPORTED = 1, 500, 800, 801


def export(cuda: Library, handle: int, kind: int = POSIX_FD) -> tuple[int, int]:
    descriptor = ctypes.c_int(-1)
    return cuda("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, kind, 0), descriptor.value


def test_an_exported_descriptor_imports_as_the_same_memory(cuda: Library) -> None:
    """[H] cuMemExportToShareableHandle, cuMemImportFromShareableHandle: the descriptor may be closed afterwards."""
    base = cuda.reserve()
    handle = cuda.commit(base, handle_types=POSIX_FD)
    code, descriptor = export(cuda, handle)
    assert code == 0
    imported = cuda.ok_get("cuMemImportFromShareableHandle", descriptor, POSIX_FD)
    os.close(descriptor)
    assert imported != handle
    cuda.ok("cuMemMap", base + MIB2, MIB2, 0, imported, 0)
    assert cuda.access(base + MIB2, MIB2) == 0
    poke(base, b"shared")
    assert peek(base + MIB2, 6) == b"shared"
    assert cuda.control.used(0) == MIB2, "one memory, paid once"


def test_imported_memory_outlives_the_exporter(cuda: Library, load: Load) -> None:
    """[H] cuMemRelease: freed when the shareable counterparts are gone too. Two libraries stand for two processes."""
    other = load("cuda-13").start()
    base = cuda.reserve()
    handle = cuda.commit(base, handle_types=POSIX_FD)
    poke(base, b"outlives")
    _, descriptor = export(cuda, handle)
    imported = other.ok_get("cuMemImportFromShareableHandle", descriptor, POSIX_FD)
    os.close(descriptor)
    cuda.ok("cuMemUnmap", base, MIB2)
    cuda.ok("cuMemRelease", handle)
    there = other.reserve()
    other.ok("cuMemMap", there, MIB2, 0, imported, 0)
    assert other.access(there, MIB2) == 0
    assert peek(there, 8) == b"outlives"


def test_only_what_was_asked_for_at_creation_is_exported(cuda: Library) -> None:
    """[H] cuMemExportToShareableHandle."""
    assert export(cuda, cuda.create())[0] == INVALID_VALUE
    handle = cuda.create(handle_types=POSIX_FD)
    assert export(cuda, handle, FABRIC)[0] == INVALID_VALUE
    assert cuda("cuMemExportToShareableHandle", buffer(), handle, POSIX_FD, 1) == INVALID_VALUE
    assert export(cuda, 0x4242)[0] == INVALID_VALUE


def test_a_descriptor_of_something_else_is_refused(cuda: Library, tmp_path: object) -> None:
    """[H] cuMemImportFromShareableHandle."""
    reading, writing = os.pipe()
    assert cuda("cuMemImportFromShareableHandle", buffer(), reading, POSIX_FD) == INVALID_VALUE
    assert cuda("cuMemImportFromShareableHandle", buffer(), 99999, POSIX_FD) == INVALID_VALUE
    assert cuda("cuMemImportFromShareableHandle", buffer(), reading, 2) == NOT_SUPPORTED
    os.close(reading)
    os.close(writing)


def test_fabric_handles_where_there_is_a_fabric(load: Load) -> None:
    """[H] cuMemCreate on FABRIC; CUmemFabricHandle is 64 bytes."""
    cuda = load("cuda-fabric").start()
    base = cuda.reserve()
    handle = cuda.commit(base, handle_types=FABRIC)
    shared = buffer(64)
    cuda.ok("cuMemExportToShareableHandle", shared, handle, FABRIC, 0)
    imported = cuda.ok_get("cuMemImportFromShareableHandle", shared, FABRIC)
    cuda.ok("cuMemMap", base + MIB2, MIB2, 0, imported, 0)
    assert cuda.access(base + MIB2, MIB2) == 0
    poke(base, b"fabric")
    assert peek(base + MIB2, 6) == b"fabric"
    assert cuda("cuMemImportFromShareableHandle", buffer(), buffer(64), FABRIC) == INVALID_VALUE


def dmabuf(cuda: Library, address: int, size: int, flags: int = 0, kind: int = 1) -> tuple[int, int]:
    descriptor = ctypes.c_int(-1)
    return cuda("cuMemGetHandleForAddressRange", ctypes.byref(descriptor), address, size, kind, flags), descriptor.value


@pytest.mark.parametrize(
    ("at", "size", "flags", "kind", "code"),
    [
        pytest.param(0, MIB2, 0, 1, 0, id="one allocation"),
        pytest.param(0, 3 * MIB2, 0, 1, 0, id="several, alike"),
        pytest.param(4096, 4096, 0, 1, 0, id="the host's page is the unit"),
        pytest.param(0, 4 * MIB2, 0, 1, INVALID_VALUE, id="a hole"),
        pytest.param(1, MIB2, 0, 1, INVALID_VALUE, id="address inside a page"),
        pytest.param(0, 100, 0, 1, INVALID_VALUE, id="size inside a page"),
        pytest.param(0, 0, 0, 1, INVALID_VALUE, id="nothing"),
        pytest.param(0, MIB2, 1, 1, 0, id="through BAR1"),
        pytest.param(0, MIB2, 2, 1, INVALID_VALUE, id="flags"),
        pytest.param(0, MIB2, 0, 2, INVALID_VALUE, id="no such kind"),
        pytest.param(6 * MIB2, 2 * MIB2, 0, 1, INVALID_VALUE, id="two allocations that differ"),
    ],
)
def test_dmabuf_ranges(cuda: Library, at: int, size: int, flags: int, kind: int, code: int) -> None:
    """[H] cuMemGetHandleForAddressRange; several handles need one device and identical properties."""
    base = cuda.reserve()
    cuda.commit(base)
    cuda.commit(base + MIB2, 2 * MIB2)
    cuda.commit(base + 6 * MIB2)
    cuda.commit(base + 7 * MIB2, rdma=1)
    verdict, descriptor = dmabuf(cuda, base + at, size, flags, kind)
    assert verdict == code
    if code == 0:
        assert os.fstat(descriptor).st_size == size
        os.close(descriptor)


def test_old_drivers_and_closed_modules_have_no_such_dmabuf(load: Load) -> None:
    """[I] libfabric#10976: a driver before 12.8 answers 1 to the PCIe flag; mscclpp#657: closed modules have none."""
    old, closed = load("cuda-12.2").start(), load("cuda-closed-modules").start()
    for cuda in old, closed:
        base = cuda.reserve()
        cuda.commit(base)
        if cuda is old:
            assert dmabuf(cuda, base, MIB2, flags=1)[0] == INVALID_VALUE
            code, descriptor = dmabuf(cuda, base, MIB2)
            assert code == 0
            os.close(descriptor)
        else:
            assert dmabuf(cuda, base, MIB2)[0] == NOT_SUPPORTED
            assert cuda.get("cuDeviceGetAttribute", 124, 0) == (0, 0)


def attribute(cuda: Library, number: int, address: int) -> tuple[int, int]:
    return cuda.get("cuPointerGetAttribute", number, address)


def test_what_a_pointer_says_of_itself(cuda: Library) -> None:
    """[H] CUpointer_attribute, facts 1.1: the range is the reservation, mapping size and base are the mapping."""
    base = cuda.reserve()
    cuda.place(base + MIB2, 2 * MIB2, handle_types=POSIX_FD, rdma=1)
    assert cuda.access(base + MIB2, 2 * MIB2) == 0
    inside = base + MIB2 + 777
    expected = {
        2: 2,  # device memory
        9: 0,
        10: 0,  # no legacy IPC
        11: base,
        12: 8 * MIB2,
        13: 1,
        14: POSIX_FD,
        15: 1,
        16: 3,
        18: 2 * MIB2,
        19: base + MIB2,
    }
    assert {number: attribute(cuda, number, inside) for number in expected} == {
        number: (0, value) for number, value in expected.items()
    }
    assert attribute(cuda, 13, base) == (0, 0)
    assert attribute(cuda, 18, base)[0] == INVALID_VALUE
    assert attribute(cuda, 2, 4096)[0] == INVALID_VALUE


def test_many_attributes_of_a_strange_pointer_are_no_error(cuda: Library) -> None:
    """[H] cuPointerGetAttributes."""
    value = ctypes.c_int(7)
    places = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    cuda.ok("cuPointerGetAttributes", 1, (ctypes.c_int * 1)(2), places, 4096)
    assert value.value == 0


def test_rdma_is_a_request(load: Load) -> None:
    """[I] ucx#10007: read it back after mapping."""
    cuda = load("cuda-13", rdma_honoured=0).start()
    base = cuda.reserve()
    handle = cuda.commit(base, rdma=1)
    assert attribute(cuda, 15, base) == (0, 0)
    answer = Properties()
    cuda.ok("cuMemGetAllocationPropertiesFromHandle", answer, handle)
    assert answer.rdma == 0


def test_the_address_range_is_one_allocation(cuda: Library) -> None:
    """[I] ucx#11461, torchcomms#3078: the bounds of the one handle; nccl#2332: 500 where nothing is mapped."""
    base = cuda.reserve()
    cuda.commit(base)
    cuda.commit(base + MIB2)
    size = ctypes.c_uint64()
    assert cuda.get("cuMemGetAddressRange_v2", ctypes.byref(size), base + MIB2 + 5) == (0, base + MIB2)
    assert size.value == MIB2
    assert cuda("cuMemGetAddressRange_v2", None, None, base + 5 * MIB2) == NOT_FOUND


def test_host_memory_says_so(cuda: Library) -> None:
    base = cuda.reserve()
    cuda.place(base, location=HOST)
    assert attribute(cuda, 2, base) == (0, 1)
    assert cuda.control.used(0) == 0
