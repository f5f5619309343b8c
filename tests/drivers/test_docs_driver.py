"""The example driver of docs/writing-a-driver.md: found like any stranger's plug-in, and held to the whole contract."""

from __future__ import annotations

import ast
import ctypes
import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch

import vmmcache
from vmmcache import ExtensibleTensor, FoundDriver, OutOfDeviceMemory, VmmDriver, open_driver
from vmmcache.testing import DriverConformance
from vmmcache.units import MIB

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the distribution were installed: its folder is on the path, its entry point is found there."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vmmcache_pool"]:
        del sys.modules[name]


class TestPoolDriver(DriverConformance):
    """Every promise that vmmcache relies on, kept by the pool."""

    @pytest.fixture
    def driver(self) -> VmmDriver:
        return open_driver("pool")

    # The pool is memory of this process: look at it without asking the driver.

    def peek(self, driver: VmmDriver, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def poke(self, driver: VmmDriver, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))


# End of the example


@pytest.fixture
def pool() -> VmmDriver:
    """A pool that no other test has taken from."""
    record = vmmcache.drivers()["pool"]
    assert isinstance(record, FoundDriver)
    return record.spec.open(0)


def test_it_is_found_by_its_entry_point_and_says_where_it_comes_from() -> None:
    record = vmmcache.drivers()["pool"]
    assert isinstance(record, FoundDriver)
    assert record.origin == f"vmmcache-pool {distribution('vmmcache-pool').version}"


def test_finding_it_loads_nothing_that_is_needed_to_run_it() -> None:
    vmmcache.drivers()
    assert "vmmcache_pool" in sys.modules
    assert [name for name in sys.modules if name.startswith("vmmcache_pool.")] == []


def test_a_probe_finds_it_usable() -> None:
    report = vmmcache.probe("pool")
    assert report.ok
    assert (report.granule, report.facts["handle_types"]) == (4 * MIB, [])
    assert [step.name for step in report.steps if not step.ok] == ["rdma", "dma-buf"]


def test_there_is_one_pool() -> None:
    assert vmmcache.probe("pool:1").reason == "there is no device 1; pool has 1"
    with pytest.raises(vmmcache.DriverUnavailable, match="there is no pool 1"):
        open_driver("pool:1")


def test_it_imports_public_names_of_vmmcache_only() -> None:
    """The rule for drivers, held for the one that others will copy."""
    found: list[tuple[str, str]] = []
    for path in sorted((EXAMPLES / "vmmcache_pool").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "vmmcache":
                found += [(node.module, alias.name) for alias in node.names]
    assert len(found) > 10
    for module, name in found:
        assert name in importlib.import_module(module).__all__, f"{module}.{name}"


def test_what_the_last_owner_wrote_is_never_seen(pool: VmmDriver) -> None:
    """I7 on memory that is not zero when it is fresh."""
    with ExtensibleTensor(1 << 30, device=pool) as tensor:
        tensor.commit(5 * MIB)
        first = tensor.segment_view(0)
        first.fill_(0xA5)
        tensor.commit(0)
        tensor.commit(7 * MIB)
        second = tensor.segment_view(0)
        assert not second.any()
        # The padding behind the committed bytes is still what its last owner left, or this test shows nothing.
        assert set(ctypes.string_at(tensor.base_address + 7 * MIB, MIB)) == {0xA5}
        tensor.commit(8 * MIB)
        assert not tensor.segment_view(0).any()
        del first, second


def test_contents_stay_when_the_tensor_grows_defragments_and_sleeps_with_a_backup(pool: VmmDriver) -> None:
    """I1, T6, T7."""
    with ExtensibleTensor(1 << 30, device=pool, segments=2) as tensor:
        tensor.commit(3 * MIB)
        view = tensor.segment_view(1, torch.int32, (MIB // 4,))
        pattern = torch.arange(MIB // 4, dtype=torch.int32)
        view.copy_(pattern)
        tensor.commit(9 * MIB)
        tensor.commit(9 * MIB, defragment=True, keep=True)
        assert len(tensor.allocations) == 2
        tensor.release_physical(backup=True)
        tensor.restore()
        assert torch.equal(view, pattern)
        del view


def test_all_memory_is_back_after_close_and_there_is_no_more_than_there_is(pool: VmmDriver) -> None:
    """I3, I4."""
    before = pool.memory_info().free
    tensor = ExtensibleTensor(1 << 30, device=pool, segments=2)
    tensor.commit(before // 4)
    with pytest.raises(OutOfDeviceMemory, match="VMMCACHE_POOL_MEMORY") as caught:
        tensor.commit(before)
    assert caught.value.committed == before // 2
    assert tensor.committed == (before // 4, before // 4)
    assert pool.memory_info().free == before - before // 2
    tensor.close()
    assert pool.memory_info().free == before


def test_a_pool_that_cannot_be_had_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_POOL_MEMORY", "4096 PiB")
    report = vmmcache.probe("pool")
    assert not report.ok
    assert f"{4096 << 50} bytes, more than half of this machine's memory" in str(report.reason)
    assert "VMMCACHE_POOL_MEMORY" in str(report.cure)
