"""Bytes and granules, there and back (P9, I11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.model import Model
from tests.planning.support import layouts, one_buffer
from vmmcache.errors import ConfigError
from vmmcache.planning import Attention, Buffer, CacheLayout, plan
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.limits import MAX_SLOTS
from vmmcache.units import GIB, MIB


@given(layouts(), st.integers(1, 5000), st.data())
def test_each_pool_rounds_by_itself(layout: CacheLayout, granule: int, data: st.DataObject) -> None:
    slots = [data.draw(st.integers(1, 500)) for _ in layout.groups]
    footprint = Footprint(layout, granule, "block-major")
    assert footprint.total(slots) * granule == Model(layout).nbytes(slots, granule)
    assert sum(footprint.granules(group, count) for group, count in enumerate(slots)) == footprint.total(slots)


@given(layouts(), st.integers(1, 5000), st.integers(0, 3000), st.sampled_from(["block-major", "layer-major"]))
def test_most_slots_is_the_most(layout: CacheLayout, granule: int, granules: int, arrangement: str) -> None:
    try:
        footprint = Footprint(layout, granule, arrangement)  # type: ignore[arg-type]  # one of the two
    except ConfigError:
        return
    for group in range(len(layout.groups)):
        slots = footprint.most_slots(group, granules)
        assert footprint.granules(group, slots) <= granules
        assert footprint.granules(group, slots + 1) > granules


def test_slots_end_where_signed_32_bit_integers_end() -> None:
    """P10: a quota of 2^50 bytes holds more blocks of 8 bytes than slots can be numbered."""
    layout = CacheLayout(8, [one_buffer(None, 8)])
    planned = plan(layout, 1 << 50)
    assert planned.groups[0].slots == MAX_SLOTS == 2**31 - 1
    assert planned.nbytes == -(-MAX_SLOTS * 8 // (2 * MIB)) * 2 * MIB


def test_layer_major_rounds_each_layers_part_of_a_pool() -> None:
    """32 layers of half a granule each: one slot takes 32 granules, where a pool of whole blocks takes 16."""
    layout = CacheLayout(16, [Attention([Buffer("key", MIB // 2), Buffer("value", MIB // 2)], count=32)])
    block_major = plan(layout, 4 * GIB)
    layer_major = plan(layout, 4 * GIB, arrangement="layer-major")
    assert block_major.min_nbytes == 16 * 2 * MIB
    assert layer_major.min_nbytes == 32 * 2 * MIB
    assert block_major.groups[0].slot_bytes == layer_major.groups[0].slot_bytes == (32 * MIB,)
    assert layer_major.groups[0].segments == (((MIB, 32),),)
    assert block_major.groups[0].slots == layer_major.groups[0].slots == 128


@given(layouts(), st.integers(1, 5000), st.integers(1, 500))
def test_layer_major_segments_hold_what_the_layers_hold(layout: CacheLayout, granule: int, slots: int) -> None:
    try:
        footprint = Footprint(layout, granule, "layer-major")
    except ConfigError:
        return
    for group, pools in enumerate(footprint.segments):
        sizes = tuple(sum(size * count for size, count in pool) for pool in pools)
        assert sizes == layout.groups[group].slot_bytes
        rounded = sum(len(range(0, slots * size, granule)) * count for pool in pools for size, count in pool)
        assert footprint.granules(group, slots) == rounded


def test_layer_major_refuses_life_cycles_that_cut_a_shared_slot_differently() -> None:
    wide = Attention([Buffer("key", 8), Buffer("value", 8)], None, count=1)
    narrow = Attention([Buffer("key", 8)], 16, count=2)
    layout = CacheLayout(8, [wide, narrow])
    assert len(layout.groups) == 1
    plan(layout)
    with pytest.raises(ConfigError, match="block-major") as error:
        plan(layout, arrangement="layer-major")
    assert error.value.field == "arrangement"
