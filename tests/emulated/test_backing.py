"""Slots on an emulated device: the suite of all backings, and lives that a model checks; torch cannot look at them."""

from __future__ import annotations

from contextlib import closing
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.backing_suite import CAPACITY, LAYOUT, BackingConformance, Life
from tests.emulated.vendor import KEEPS_MEMORY, opened
from tests.emulator.control import Control
from vmmcache import DriverUnavailable
from vmmcache.cache.backing import Backing
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.vmm_backing import VmmBacking

GRANULE = 2 << 20


class TestVmmOnAnEmulatedDevice(BackingConformance):
    granule: ClassVar[int] = GRANULE

    def make(self, pools: PoolMap, capacity: tuple[int, ...]) -> Backing:
        return VmmBacking(pools, capacity, opened(1))


@settings(max_examples=10)
@given(st.data())
def test_any_life_leaves_in_the_slots_what_the_model_says(control: Control, data: st.DataObject) -> None:
    driver = opened(1)
    used = control.used(1)
    backing = VmmBacking(PoolMap(LAYOUT, "layer-major", GRANULE), CAPACITY, driver)
    # Also where an example is given up half-way: memory that goes back later would be missed in the next one's.
    with closing(backing):
        life = Life(backing)
        for _ in range(data.draw(st.integers(1, 6))):
            life.step(data)
            if not KEEPS_MEMORY:
                assert control.used(1) - used == backing.physical_bytes


def test_views_are_refused_with_the_reason() -> None:
    backing = VmmBacking(PoolMap(LAYOUT, "block-major", GRANULE), CAPACITY, opened(1))
    backing.commit(1)
    for exact in (True, False):
        with pytest.raises(DriverUnavailable, match="torch"):
            backing.views(exact=exact)
    backing.close()
