"""Handles of a tensor's memory: per segment or allocation, made when asked for, the caller's to close (C7, D9)."""

from __future__ import annotations

import dataclasses
import gc
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import Accounts, GpuLikeDriver, accounts, peek
from vmmcache import (
    Allocation,
    ConfigError,
    DriverError,
    DriverUnavailable,
    ExportedMemory,
    ExtensibleTensor,
    StaleSegment,
    StateError,
)
from vmmcache.driver import HandleType
from vmmcache.testing import RecordingDriver

G = FINE


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def driver() -> FineHostDriver:
    return FineHostDriver()


@pytest.fixture
def tensor(driver: FineHostDriver) -> ExtensibleTensor:
    made = ExtensibleTensor(16 * G, driver, segments=2)
    made.commit([G, 2 * G])
    return made


class LostDriver(FineHostDriver):
    """Memory whose shareable handles were tried and refused."""

    losses: tuple[str, ...] = ("fabric: refused, no channel", "posix_fd: refused, this is WSL2")

    def _create(self, nbytes: int) -> Allocation:
        return dataclasses.replace(super()._create(nbytes), handle_types=frozenset())


class FabricDriver(GpuLikeDriver):
    """Memory with fabric handles alone, and a dma-buf of whole pages of it."""

    given: ClassVar[list[tuple[int, int]]] = []

    def __init__(self) -> None:
        super().__init__()
        vars(self)["granule"] = FINE

    def _create(self, nbytes: int) -> Allocation:
        return dataclasses.replace(super()._create(nbytes), handle_types=frozenset({"fabric"}))

    def _export(self, handle: int, kind: HandleType) -> int | bytes:  # type: ignore[override]  # the host's has no fabric
        return handle.to_bytes(64, "little")

    def _dmabuf(self, address: int, nbytes: int) -> int:
        self.given.append((address, nbytes))
        return os.dup(0)


def test_a_segment_is_exported_as_its_allocation(tensor: ExtensibleTensor, driver: FineHostDriver) -> None:
    before = descriptors()
    tensor.write([(1, 5, b"these")])
    with tensor.export(1) as export:
        assert (export.kind, export.address, export.nbytes) == ("posix_fd", tensor.base_address + 8 * G, 2 * G)
        assert (export.offset, export.handle_nbytes, export.allocation_id) == (0, 2 * G, tensor.allocations[1].id)
        assert os.pread(export.fileno(), 5, 5) == b"these"
        assert not os.get_inheritable(export.fileno())
        assert descriptors() == before + 1
    assert descriptors() == before
    export.close()
    with pytest.raises(StateError, match="no handle any more"):
        export.fileno()
    tensor.close()
    assert accounts(driver) == Accounts()


def test_a_descriptor_of_an_allocation_says_where_its_bytes_are() -> None:
    """Two segments in one granule: the handle is of the whole, the offset of the piece."""
    tensor = ExtensibleTensor(2 * G, FineHostDriver(), segments=[G // 2, 3 * G // 2])
    tensor.commit([10, 20])
    first, second = tensor.registrable()
    with tensor.export(first) as one, tensor.export(second) as two:
        assert (one.allocation_id, one.offset, one.nbytes, one.handle_nbytes) == (two.allocation_id, 0, 10, G)
        assert (two.offset, two.nbytes, two.handle_nbytes) == (G // 2, 20, G)
    tensor.close()


def test_a_bare_descriptor_is_the_callers(tensor: ExtensibleTensor) -> None:
    before = descriptors()
    bare = tensor.export(0).detach()
    assert isinstance(bare, int)
    tensor.close()
    assert os.fstat(bare).st_size == G, "it keeps the memory"
    os.close(bare)
    assert descriptors() == before - 2


def test_who_forgets_to_close_is_warned_and_nothing_is_left(tensor: ExtensibleTensor) -> None:
    before = descriptors()
    with pytest.warns(ResourceWarning, match="unclosed <ExportedMemory posix_fd"):
        tensor.export(0)  # which nobody holds
    assert descriptors() == before
    tensor.close()


def test_what_is_stale_is_not_exported(tensor: ExtensibleTensor) -> None:
    """C4: also where other memory has come to the same address."""
    pieces = tensor.registrable()
    tensor.commit([0, 2 * G])
    tensor.commit([G, 2 * G])
    for piece in pieces:
        for export in tensor.export, tensor.export_dmabuf:
            with pytest.raises(StaleSegment, match="generation"):
                export(piece)
    (fresh, _) = tensor.registrable()
    tensor.release_physical()
    with pytest.raises(StaleSegment):
        tensor.export(fresh)
    with pytest.raises(StateError, match="asleep"):
        tensor.export(0)
    tensor.close()
    with pytest.raises(StateError, match="closed"):
        tensor.export(0)


def test_leased_memory_is_exported(tensor: ExtensibleTensor) -> None:
    """A connector that registers it may want a dma-buf of it, and an importer holds a lease itself."""
    with tensor.lease(0, "nixl"), tensor.export(0) as export:
        assert export.nbytes == G
    tensor.close()


def test_what_cannot_be_one_handle_says_so(tensor: ExtensibleTensor) -> None:
    tensor.commit([3 * G, 2 * G])
    with pytest.raises(ConfigError, match="segment 0 lies in 2 allocations; export each of registrable"):
        tensor.export(0)
    for piece in tensor.registrable():
        tensor.export(piece).close()
    tensor.commit([3 * G, 2 * G], defragment=True)
    tensor.export(0).close()
    tensor.commit([3 * G, 0])
    with pytest.raises(StateError, match=r"segment 1 .* nothing committed; commit before you export"):
        tensor.export(1)
    wrong: Any = "fax"
    with pytest.raises(ConfigError, match="kind"):
        tensor.export(0, wrong)
    with pytest.raises(ConfigError, match="segment"):
        tensor.export(2)
    tensor.close()


def test_what_was_lost_when_it_was_tried_is_in_the_refusal() -> None:
    """D9."""
    tensor = ExtensibleTensor(G, LostDriver())
    tensor.commit(G)
    kinds: tuple[HandleType | None, ...] = (None, "posix_fd", "fabric")
    for kind in kinds:
        with pytest.raises(DriverUnavailable, match="this is WSL2") as caught:
            tensor.export(0, kind)
        assert "no channel" in caught.value.cure
        assert caught.value.call == "export_handle"
    tensor.close()


def test_a_kind_that_there_is_not_says_which_there_are(tensor: ExtensibleTensor) -> None:
    with pytest.raises(DriverUnavailable, match=r"without handle type 'fabric'.*posix_fd"):
        tensor.export(0, "fabric")
    with pytest.raises(DriverUnavailable, match="no dma-buf"):
        tensor.export_dmabuf(0)
    tensor.close()


def test_fabric_handles_are_bytes_with_nothing_to_close() -> None:
    tensor = ExtensibleTensor(4 * G, FabricDriver())
    tensor.commit(G)
    export = tensor.export(0)
    assert (export.kind, export.handle) == ("fabric", tensor.allocations[0].handle.to_bytes(64, "little"))
    with pytest.raises(StateError, match="no descriptor"):
        export.fileno()
    export.close()
    tensor.close()


def test_a_dma_buf_is_of_whole_pages() -> None:
    """UCX and ibv_reg_dmabuf_mr want page borders; `offset` is where the bytes begin."""
    driver = FabricDriver()
    driver.given.clear()
    tensor = ExtensibleTensor(2 * G, driver, segments=[G // 2 + 100, 3 * G // 2 - 100])
    tensor.commit([0, 5000])
    before = descriptors()
    with tensor.export_dmabuf(1) as export:
        assert (export.kind, export.offset, export.nbytes, export.handle_nbytes) == ("dma_buf", 100, 5000, 8192)
        assert driver.given == [(tensor.base_address + G // 2, 8192)]
        assert descriptors() == before + 1
    assert descriptors() == before
    tensor.close()


@pytest.mark.parametrize("verb", ["export_handle", "export_dmabuf"])
def test_a_refusal_of_the_driver_leaves_nothing(verb: str) -> None:
    driver = RecordingDriver(FabricDriver())
    tensor = ExtensibleTensor(2 * G, driver)
    tensor.commit(G)
    before = descriptors()
    driver.fail(verb=verb)
    with pytest.raises(DriverError):
        tensor.export(0) if verb == "export_handle" else tensor.export_dmabuf(0)
    assert descriptors() == before
    tensor.close()
    driver.check_clean()


def test_an_export_shows_what_it_is(tensor: ExtensibleTensor) -> None:
    with tensor.export(0) as export:
        assert repr(export) == f"<ExportedMemory posix_fd of {G} bytes at {tensor.base_address:#x}, open>"
        assert isinstance(export, ExportedMemory)
    assert "closed" in repr(export)
    assert peek(tensor.base_address, 1) == b"\0"
    tensor.close()
