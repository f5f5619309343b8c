"""A tensor shared through the vendor's own handles: descriptors, or fabric handles, between processes (C7, D9)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulated.vendor import CUDA, NAME, UNIFORM, function
from tests.emulator.control import Control
from tests.helpers import PATIENCE_S, peek, poke
from tests.sharing.support import event, eventually
from vmmcache import DriverError, DriverUnavailable, ExtensibleTensor, LeaseError, SharedTensor, TensorServer, VmmDriver

IMPORTER = """
import sys
from tests.helpers import peek, poke
from tests.sharing.support import event
from vmmcache import SharedTensor
with SharedTensor.connect(sys.argv[1], sys.argv[2], writable=sys.argv[3] == "w") as shared:
    print(peek(shared.base_address, 5).decode(), *shared.committed, flush=True)
    change = event(shared, "committed") and event(shared, "committed")
    print(peek(shared.base_address + change.committed[0] - 4, 4).decode(), flush=True)
    poke(shared.base_address, b"there")
    sys.stdin.readline()
    event(shared, "asleep")
    print(*shared.committed, shared.state, flush=True)
    event(shared, "restored")
    print(peek(shared.base_address, 5).hex(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def tensor(driver: VmmDriver) -> Iterator[ExtensibleTensor]:
    with ExtensibleTensor(16 * driver.granule, driver, segments=2) as made:
        made.commit(driver.granule)
        yield made


def test_an_export_is_what_the_device_gives(tensor: ExtensibleTensor) -> None:
    given = tensor.allocations[0].handle_types
    with tensor.export(0) as export:
        assert export.kind == ("posix_fd" if "posix_fd" in given else "fabric")
        assert len(export.handle) == 64 if isinstance(export.handle, bytes) else os.fstat(export.fileno())
    try:
        with tensor.export_dmabuf(0) as buffer:
            assert os.fstat(buffer.fileno()).st_size == tensor.granule
    except DriverUnavailable as error:
        assert "no dma-buf" in error.reason


def test_a_shared_life_in_another_process(tensor: ExtensibleTensor, control: Control, tmp_path: Path) -> None:
    granule = tensor.granule
    poke(tensor.base_address, b"hello")
    used = control.used(tensor.driver.index)
    with TensorServer(tensor, tmp_path / "kv.sock", timeout_s=PATIENCE_S) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", IMPORTER, server.path, tensor.device, "w"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **({"VMMCACHE_HIP_UNIFORM_CHUNKS": "1"} if UNIFORM else {})},
        )
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == f"hello {granule} {granule}\n", child.communicate()
        with tensor.driver.current():
            tensor.driver.write(tensor.base_address + granule - 4, b"last")
        tensor.commit(3 * granule)
        tensor.write([(0, 3 * granule - 4, b"grew")])
        assert child.stdout.readline() in ("grew\n", "\0\0\0\0\n")
        eventually(lambda: peek(tensor.base_address, 5) == b"there")
        child.stdin.write("\n")
        child.stdin.flush()
        with pytest.raises(LeaseError, match=f"importer process {child.pid} "):
            tensor.release_physical()
        tensor.release_physical(revoke=True)
        assert child.stdout.readline() == "0 0 asleep\n"
        assert control.used(tensor.driver.index) == used - 2 * granule, "it has come back: nobody maps it"
        tensor.restore()
        assert child.stdout.readline() == "0000000000\n"
        child.stdin.write("\n")
        _, errors = child.communicate(timeout=PATIENCE_S)
        assert (child.returncode, errors) == (0, "")
        eventually(lambda: server.importers == ())


def test_reading_only_is_kept_by_the_device(tensor: ExtensibleTensor, tmp_path: Path) -> None:
    poke(tensor.base_address, b"mine")
    with (
        TensorServer(tensor, tmp_path / "kv.sock") as server,
        SharedTensor.connect(server.path, tensor.driver, writable=False) as shared,
    ):
        assert shared.read([(0, 0, 4)]) == [b"mine"]
        with pytest.raises(DriverError, match="for reading only"):
            shared.write([(0, 0, b"no")])
        with open("/proc/self/maps", encoding="ascii") as maps:
            (line,) = (line for line in maps if line.startswith(f"{shared.base_address:x}-"))
        assert line.split()[1] == "r--s"


@pytest.mark.skipif(not CUDA, reason="no HIP is known to refuse it")
@pytest.mark.parametrize("code", [1, 801])
def test_a_device_that_grants_no_reading_only_says_so(
    tensor: ExtensibleTensor, control: Control, tmp_path: Path, code: int
) -> None:
    """It is not granted more instead, and the importer has nothing (I4)."""
    control.set(read_only_code=code)
    try:
        with TensorServer(tensor, tmp_path / "kv.sock") as server:
            left = control.leaks()
            with pytest.raises(DriverUnavailable, match=f"no access for reading only .*{code}.*writable=True"):
                SharedTensor.connect(server.path, tensor.driver, writable=False)
            assert control.leaks() == left
            SharedTensor.connect(server.path, tensor.driver).close()
    finally:
        control.set(read_only_code=0)


@pytest.mark.parametrize("verb", ["create", "map", "grant", "import"])
def test_an_importer_that_cannot_follow_says_so_and_leaves_nothing(
    tensor: ExtensibleTensor, control: Control, tmp_path: Path, verb: str
) -> None:
    """The vendor's call fails in the importer's growth: all or nothing (I4); the exporter goes on."""
    prefix = "cu" if NAME == "cuda" else "hip"
    call = f"{prefix}MemImportFromShareableHandle" if verb == "import" else function(verb)
    with TensorServer(tensor, tmp_path / "kv.sock") as server:
        if verb == "create":
            with SharedTensor.connect(server.path, tensor.driver) as shared:
                control.fail(call, 2)
                with pytest.raises(MemoryError):
                    tensor.commit(2 * tensor.granule)
                tensor.commit(2 * tensor.granule)
                eventually(lambda: shared.committed == tensor.committed)
            return
        control.fail(call, 999, nth=1)
        with pytest.raises(DriverError) as caught:
            SharedTensor.connect(server.path, tensor.driver)
        assert caught.value.call == call
        with SharedTensor.connect(server.path, tensor.driver) as shared:
            assert shared.committed == tensor.committed
            event(shared, "committed")
