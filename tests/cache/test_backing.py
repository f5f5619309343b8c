"""Both kinds of backing do the same: one suite, and lives that a model checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.backing_suite import CAPACITY, LAYOUT, Life, VisibleBackingConformance
from tests.fine_host import FINE, FineHostDriver, KeepingDriver, UniformDriver
from tests.helpers import usage
from vmmcache.cache.backing import Backing
from vmmcache.cache.plain_backing import PlainBacking
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.planning.layout import Arrangement
from vmmcache.testing import DirtyDriver, RecordingDriver


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left() -> Iterator[None]:
    before = usage()
    yield
    assert usage() == before


class TestVmmOnHost(VisibleBackingConformance):
    granule: ClassVar[int] = FINE

    def make(self, pools: PoolMap, capacity: tuple[int, ...]) -> Backing:
        return VmmBacking(pools, capacity, RecordingDriver(DirtyDriver(FineHostDriver())))


class TestVmmInChunks(VisibleBackingConformance):
    granule: ClassVar[int] = FINE

    def make(self, pools: PoolMap, capacity: tuple[int, ...]) -> Backing:
        return VmmBacking(pools, capacity, RecordingDriver(DirtyDriver(FineHostDriver())), chunk=FINE)


class TestPlainOnCpu(VisibleBackingConformance):
    granule: ClassVar[int] = FINE

    def make(self, pools: PoolMap, capacity: tuple[int, ...]) -> Backing:
        return PlainBacking(pools, capacity, "cpu")


@settings(max_examples=40)
@given(st.data(), st.sampled_from(["block-major", "layer-major"]), st.integers(0, 3))
def test_any_life_leaves_in_the_slots_what_the_model_says(
    data: st.DataObject, arrangement: Arrangement, which: int
) -> None:
    pools = PoolMap(LAYOUT, arrangement, FINE)
    if which == 0:
        backing: Backing = PlainBacking(pools, CAPACITY)
    else:
        host = (DirtyDriver(FineHostDriver()), KeepingDriver(), DirtyDriver(UniformDriver()))[which - 1]
        backing = VmmBacking(pools, CAPACITY, RecordingDriver(host), chunk=data.draw(st.sampled_from([None, 2 * FINE])))
    life = Life(backing)
    for _ in range(data.draw(st.integers(1, 8))):
        life.step(data)
    backing.close()
    if isinstance(backing, VmmBacking):
        driver = backing.tensor.driver
        assert isinstance(driver, RecordingDriver)
        driver.check_clean()
