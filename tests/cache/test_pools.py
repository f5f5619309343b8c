"""Where slots are: every byte of a slot belongs to one buffer, and what is mapped is what was planned (I11)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fine_host import FINE, FineHostDriver
from tests.planning.support import layouts, nine_layout
from vmmcache import ConfigError, ExtensibleTensor
from vmmcache.cache.pools import Place, PoolMap
from vmmcache.planning import Attention, Buffer, CacheLayout, Ssm, plan
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.layout import Arrangement

ARRANGEMENTS: tuple[Arrangement, ...] = ("block-major", "layer-major")
arrangements = st.sampled_from(ARRANGEMENTS)
MIB = 1 << 20


def pool_map(layout: CacheLayout, arrangement: Arrangement, granule: int) -> PoolMap | None:
    """The map; None where life cycles that share a group split a slot unequally, which layer-major refuses."""
    try:
        return PoolMap(layout, arrangement, granule)
    except ConfigError as error:
        assert (arrangement, error.field) == ("layer-major", "arrangement")
        return None


def layers_one_by_one(layout: CacheLayout) -> Iterator[Attention | Ssm]:
    for layer in layout.layers:
        yield from [layer] * layer.count


def key(layout: CacheLayout, layer: Attention | Ssm) -> object:
    if isinstance(layer, Ssm):
        return "ssm"
    return layer.window, math.ceil(layer.sink_tokens / layout.tokens_per_block)


# Bytes ---------------------------------------------------------------------------------------------------------------


@given(layouts(), arrangements, st.data())
def test_every_byte_of_a_slot_belongs_to_just_one_buffer_of_each_life_cycle(
    layout: CacheLayout, arrangement: Arrangement, data: st.DataObject
) -> None:
    pools = pool_map(layout, arrangement, 64)
    if pools is None:
        return
    by_cycle: dict[object, list[tuple[Place, bool]]] = {}
    for layer, (_, roles) in zip(layers_one_by_one(layout), pools.places.items(), strict=True):
        assert list(roles) == [buffer.role for buffer in layer.buffers]
        for buffer, place in zip(layer.buffers, roles.values(), strict=True):
            assert place.nbytes == buffer.nbytes
            assert place.shape == (buffer.nbytes,)
            assert place.stride == pools.segments[place.segment].stride
            assert place.group == pools.segments[place.segment].group
            by_cycle.setdefault(key(layout, layer), []).append((place, True))
    for places in by_cycle.values():
        (group,) = {place.group for place, _ in places}
        used = sorted((place.segment, place.offset, place.offset + place.nbytes) for place, _ in places)
        assert {segment for segment, _, _ in used} == set(pools.groups[group])
        for segment in pools.groups[group]:
            spans = [(start, stop) for index, start, stop in used if index == segment]
            assert spans[0][0] == 0
            assert spans[-1][1] == pools.segments[segment].stride
            assert all(before[1] == after[0] for before, after in pairwise(spans))


@given(layouts(), arrangements, st.integers(1, 300), st.data())
def test_the_footprint_is_that_of_the_planner_and_of_the_segments(
    layout: CacheLayout, arrangement: Arrangement, granule: int, data: st.DataObject
) -> None:
    """I11; the second half, that the region maps just that, is below."""
    pools = pool_map(layout, arrangement, granule)
    if pools is None:
        return
    slots = [data.draw(st.integers(0, 500)) for _ in pools.groups]
    sizes = pools.sizes(slots)
    assert [segment.group for segment in pools.segments] == sorted(segment.group for segment in pools.segments)
    assert sizes == [slots[segment.group] * segment.stride for segment in pools.segments]
    assert pools.capacities(slots) == [math.ceil(size / granule) * granule for size in sizes]
    assert pools.footprint(slots) == Footprint(layout, granule, arrangement).total(slots) * granule
    assert pools.footprint(slots) == sum(pools.capacities(slots))


@given(layouts(), arrangements, st.sampled_from([1, 6, 16, 60, 64]))
def test_the_alignment_is_the_smallest_step_at_which_every_segment_ends_on_a_granule(
    layout: CacheLayout, arrangement: Arrangement, granule: int
) -> None:
    """S3, I10."""
    pools = pool_map(layout, arrangement, granule)
    if pools is None:
        return
    for group, indices in enumerate(pools.groups):
        strides = [pools.segments[index].stride for index in indices]
        step = next(n for n in range(1, granule + 1) if all(n * stride % granule == 0 for stride in strides))
        assert pools.alignment(group) == step
    assert pools.alignments == tuple(map(pools.alignment, range(len(pools.groups))))


@settings(max_examples=40)
@given(layouts(), arrangements, st.data())
def test_the_region_maps_what_was_planned_whatever_the_counts(
    layout: CacheLayout, arrangement: Arrangement, data: st.DataObject
) -> None:
    """I11, on the host driver, for the memory in one tensor as the cache has it."""
    pools = pool_map(layout, arrangement, FINE)
    if pools is None:
        return
    driver = FineHostDriver()
    capacity = [data.draw(st.integers(1, 200)) for _ in pools.groups]
    sizes = pools.capacities(capacity)
    with ExtensibleTensor(sum(sizes), driver, sizes) as tensor:
        for _ in range(3):
            slots = [data.draw(st.integers(0, most)) for most in capacity]
            tensor.commit(pools.sizes(slots), defragment=True)
            assert tensor.physical_bytes == pools.footprint(slots)


def test_a_plan_of_nine_life_cycles_is_what_is_mapped_for_it() -> None:
    planned = plan(nine_layout("hybrid9"), 1 << 30, 2 * MIB)
    pools = PoolMap(planned.layout, planned.arrangement, planned.granule)
    slots = [group.slots for group in planned.groups]
    assert pools.footprint(slots) == planned.nbytes
    with ExtensibleTensor(sum(pools.capacities(slots)), "host", pools.capacities(slots)) as tensor:
        tensor.commit(pools.sizes(slots))
        assert tensor.physical_bytes == planned.nbytes


@pytest.mark.parametrize(
    ("strides", "step"), [([65536], 32), ([98304], 64), ([65536, 98304], 64), ([4 * MIB], 1), ([18432], 1024)]
)
def test_alignments_of_known_strides(strides: list[int], step: int) -> None:
    """The figures of growable KV caches elsewhere: 64 KiB, 96 KiB, both, 4 MiB, and MLA at 18,432 bytes."""
    buffers = [Buffer(f"b{index}", nbytes) for index, nbytes in enumerate(strides)]
    assert PoolMap(CacheLayout(16, [Attention(buffers)]), "block-major", 2 * MIB).alignment(0) == step


# Places --------------------------------------------------------------------------------------------------------------


def test_places_of_a_small_layout() -> None:
    """By hand: two layers of 64, 64 and four times 4 bytes, and one of 128 and 64 that has a window."""
    layout = CacheLayout(
        32,
        [
            Attention([Buffer("k", 64), Buffer("scale", 4, 8), Buffer("v", 64)], count=2),
            Attention([Buffer("k", 128), Buffer("v", 64)], window=64, name="windowed"),
        ],
    )
    block = PoolMap(layout, "block-major", 4096)
    assert [segment.stride for segment in block.segments] == [256, 32, 128, 64]
    assert block.places["layers.1"]["k"] == Place(0, 0, 128, 64, 256, None)
    assert block.places["layers.1"]["v"] == Place(0, 0, 192, 64, 256, None)
    assert block.places["layers.1"]["scale"] == Place(0, 1, 16, 16, 32, 4)
    assert block.places["layers.1"]["scale"].shape == (4, 4)
    assert block.places["windowed"]["v"] == Place(1, 3, 0, 64, 64, None)
    layer = PoolMap(layout, "layer-major", 4096)
    assert [segment.stride for segment in layer.segments] == [128, 128, 16, 16, 128, 64]
    assert layer.places["layers.1"]["v"] == Place(0, 1, 64, 64, 128, None)
    assert layer.places["layers.1"]["scale"] == Place(0, 3, 0, 16, 16, 4)


def test_parts_of_a_layer_major_pool_are_sorted_and_layers_find_their_own() -> None:
    layout = CacheLayout(1, [Attention([Buffer("k", 8)]), Attention([Buffer("k", 8), Buffer("v", 8)], count=2)])
    pools = PoolMap(layout, "layer-major", 64)
    assert [segment.stride for segment in pools.segments] == [16, 16, 8]
    assert [roles["k"].segment for roles in pools.places.values()] == [2, 0, 1]


def test_sizes_whose_slots_are_of_one_size_have_pools_of_their_own() -> None:
    layout = CacheLayout(1, [Attention([Buffer("a", 4), Buffer("b", 8), Buffer("c", 4)])])
    for arrangement in ARRANGEMENTS:
        pools = PoolMap(layout, arrangement, 64)
        assert [segment.stride for segment in pools.segments] == [8, 8]
        places = [(place.segment, place.offset) for place in pools.places["layers.0"].values()]
        assert places == [(0, 0), (1, 0), (0, 4)]


def test_layers_are_named_by_their_name_their_copy_or_their_number() -> None:
    buffers = [Buffer("k", 8)]
    layers: list[Attention | Ssm] = [
        Attention(buffers),
        Attention(buffers, name="a", count=2),
        Ssm(buffers, name="s"),
        Ssm(buffers, count=2),
    ]
    names = list(PoolMap(CacheLayout(1, layers), "block-major", 64).places)
    assert names == ["layers.0", "a.0", "a.1", "s", "layers.4", "layers.5"]


# Wrong use -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layers",
    [
        [Attention([Buffer("k", 8)]), Attention([Buffer("k", 8)], name="layers.0")],
        [Attention([Buffer("k", 8)], name="a", count=2), Attention([Buffer("k", 8)], name="a.1")],
    ],
)
def test_two_layers_of_one_name_are_refused(layers: list[Attention]) -> None:
    with pytest.raises(ConfigError, match="two layers would have this name") as caught:
        PoolMap(CacheLayout(1, layers), "block-major", 64)
    assert caught.value.value in ("layers.0", "a.1")


def test_what_cannot_be_a_map_is_refused() -> None:
    layout = CacheLayout(1, [Attention([Buffer("k", 8)])])
    with pytest.raises(ConfigError, match="layout"):
        PoolMap("layout", "block-major", 64)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="arrangement"):
        PoolMap(layout, "head-major", 64)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="granule"):
        PoolMap(layout, "block-major", 0)


def test_counts_are_one_for_all_or_one_for_each() -> None:
    layout = CacheLayout(1, [Attention([Buffer("k", 8)]), Attention([Buffer("k", 16)], window=4)])
    pools = PoolMap(layout, "block-major", 64)
    assert pools.counts(3) == pools.counts([3, 3]) == (3, 3)
    for wrong, what in (([1], "1 numbers for 2"), ([1, -1], r"slots\[1\]"), (1.5, "whole number"), (2**31, "at most")):
        with pytest.raises(ConfigError, match=what):
            pools.counts(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1"):
        pools.counts(0, minimum=1)
