"""I11: bytes(plan) = the bytes that memory really maps for it, on the host driver."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmmcache import ExtensibleTensor
from vmmcache.errors import ConfigError
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, GroupPlan, Plan, Request, Ssm, plan
from vmmcache.planning.layout import Arrangement
from vmmcache.units import MIB, align_up


def granule_of_the_host() -> int:
    with ExtensibleTensor(1, device="host") as tensor:
        return tensor.granule


def mapped(planned: Plan) -> int:
    """Commit every pool of a plan, all at once, and count the physical bytes."""
    with ExitStack() as stack:
        tensors = [stack.enter_context(pool) for group in planned.groups for pool in pools(group, planned.granule)]
        return sum(tensor.physical_bytes for tensor in tensors)


def pools(group: GroupPlan, granule: int) -> list[ExtensibleTensor]:
    """One tensor for each pool, with one segment for each run of slots, committed to the plan's slots."""
    tensors = []
    for parts in group.segments:
        committed = [nbytes * group.slots for nbytes, count in parts for _ in range(count)]
        # Reserved for twice as much, as an engine would that expects to grow.
        reserved = [align_up(2 * nbytes, granule) for nbytes in committed]
        tensor = ExtensibleTensor(sum(reserved), device="host", segments=reserved)
        tensor.commit(committed)
        tensors.append(tensor)
    return tensors


@st.composite
def layouts(draw: st.DrawFn) -> CacheLayout:
    """Blocks from a fraction of a granule to more than one, not multiples of anything."""
    sizes = st.sampled_from([1, 777, 65536, MIB - 1, MIB, 2 * MIB + 1])
    layers: list[Attention | Ssm] = []
    for kind in draw(st.lists(st.sampled_from(["full", "window", "ssm"]), min_size=1, max_size=3)):
        buffers = [Buffer("a", draw(sizes)), Buffer("b", draw(sizes))]
        count = draw(st.integers(1, 3))
        if kind == "ssm":
            layers.append(Ssm(buffers, count=count))
        else:
            layers.append(Attention(buffers, 40 if kind == "window" else None, count=count))
    return CacheLayout(16, layers)


@settings(max_examples=40)
@given(layouts(), st.integers(1, 120), st.sampled_from(["block-major", "layer-major"]), st.integers(0, 40))
def test_a_plan_takes_the_bytes_that_memory_maps_for_it(
    layout: CacheLayout, tokens: int, arrangement: Arrangement, more: int
) -> None:
    granule = granule_of_the_host()
    constraints = [Batch([Request(tokens, count=2)])]
    try:
        floors = plan(layout, granule=granule, constraints=constraints, arrangement=arrangement)
    except ConfigError:
        # Life cycles that share a group need not cut a slot alike; then layer-major is refused.
        assert arrangement == "layer-major"
        return
    assert mapped(floors) == floors.nbytes
    quota = floors.min_nbytes + more * granule + 1
    planned = plan(layout, quota, granule, constraints=constraints, arrangement=arrangement)
    assert mapped(planned) == planned.nbytes <= quota


@pytest.mark.parametrize("arrangement", ["block-major", "layer-major"])
def test_a_model_of_many_layers_takes_what_its_plan_says(arrangement: Arrangement) -> None:
    layer = Attention([Buffer("key", 4096), Buffer("value", 4096)], count=16)
    granule = granule_of_the_host()
    planned = plan(CacheLayout(16, [layer]), 64 * MIB, granule, arrangement=arrangement)
    assert mapped(planned) == planned.nbytes
    assert planned.nbytes == 64 * MIB
