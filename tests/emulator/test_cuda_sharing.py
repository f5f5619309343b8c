"""Handles that leave the process, dma-buf, and what a pointer says of itself, on CUDA."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.conftest import Load
from tests.emulator.control import ROOT
from tests.emulator.direct import FABRIC, MIB2, POSIX_FD, Library, buffer, peek, poke

INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED = 1, 2, 801


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


IMPORTER = """
import sys
from pathlib import Path
from tests.emulator.direct import MIB2, Library, buffer, peek, poke

cuda = Library("cuda", "cuda-fabric", Path(sys.argv[1])).start()
kind, shared = int(sys.argv[2]), sys.argv[3]
given = buffer(64) if kind == 8 else int(shared)
if kind == 8:
    given.raw = bytes.fromhex(shared)
handle = cuda.ok_get("cuMemImportFromShareableHandle", given, kind)
base = cuda.reserve()
cuda.ok("cuMemMap", base, MIB2, 0, handle, 0)
assert cuda.access(base, MIB2) == 0
print(peek(base, 5).decode(), cuda.control.used(0))
poke(base, b"there")
"""


@pytest.mark.parametrize("kind", [POSIX_FD, FABRIC])
def test_another_process_imports_the_same_memory(load: Load, tmp_path: Path, kind: int) -> None:
    """[H] cuMemImportFromShareableHandle. The exporter pays for the memory; the importer finds its bytes."""
    cuda = load("cuda-fabric").start()
    base = cuda.reserve()
    cuda.commit(base + MIB2, handle_types=kind)  # so that it is not the first in its file
    handle = cuda.commit(base, handle_types=kind)
    poke(base, b"hello")
    shared, passed = buffer(64), []
    cuda.ok("cuMemExportToShareableHandle", shared, handle, kind, 0)
    if kind == POSIX_FD:
        passed = [int.from_bytes(shared.raw[:4], "little")]
    (tmp_path / "importer").mkdir()
    given = str(passed[0]) if passed else shared.raw.hex()
    child = subprocess.run(
        [sys.executable, "-c", IMPORTER, tmp_path / "importer", str(kind), given],
        pass_fds=passed,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for descriptor in passed:
        os.close(descriptor)
    assert (child.returncode, child.stdout, child.stderr) == (0, "hello 0\n", "")
    assert peek(base, 5) == b"there"


def test_only_what_was_asked_for_at_creation_is_exported(cuda: Library) -> None:
    """[H] cuMemExportToShareableHandle."""
    assert export(cuda, cuda.create())[0] == INVALID_VALUE
    handle = cuda.create(handle_types=POSIX_FD)
    assert export(cuda, handle, FABRIC)[0] == INVALID_VALUE
    assert cuda("cuMemExportToShareableHandle", buffer(), handle, POSIX_FD, 1) == INVALID_VALUE
    assert export(cuda, 0x4242)[0] == INVALID_VALUE


def test_no_descriptor_left_is_out_of_memory(cuda: Library, few_descriptors: int) -> None:
    """[?] which code; the limit is the process's."""
    base = cuda.reserve()
    handle = cuda.commit(base, handle_types=POSIX_FD)
    taken: list[int] = []
    while len(taken) < 1000 and (made := export(cuda, handle))[0] == 0:
        taken.append(made[1])
    assert made[0] == OUT_OF_MEMORY
    assert dmabuf(cuda, base, MIB2)[0] == OUT_OF_MEMORY
    for descriptor in taken:
        os.close(descriptor)
    code, descriptor = dmabuf(cuda, base, MIB2)
    assert code == 0
    os.close(descriptor)


def test_answers_want_a_place(cuda: Library) -> None:
    handle = cuda.create(handle_types=POSIX_FD)
    assert cuda("cuMemExportToShareableHandle", None, handle, POSIX_FD, 0) == INVALID_VALUE
    assert cuda("cuMemImportFromShareableHandle", None, 1, POSIX_FD) == INVALID_VALUE


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
