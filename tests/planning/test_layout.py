"""Layers -> life cycles -> pools -> pool groups (P1)."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given

from tests.planning.model import Model
from tests.planning.support import layouts, one_buffer
from vmmcache.planning import Attention, Buffer, CacheLayout, Ssm


@given(layouts())
def test_life_cycles_and_groups_are_those_of_sorting_buffers_by_hand(layout: CacheLayout) -> None:
    model = Model(layout)
    assert [list(cycle.slot_bytes) for cycle in layout.life_cycles] == list(model.sizes.values())
    assert [len(group.life_cycles) for group in layout.groups] == [len(group) for group in model.groups]
    assert [list(group.slot_bytes) for group in layout.groups] == [model.sizes[group[0]] for group in model.groups]
    for cycle, key in zip(layout.life_cycles, model.sizes, strict=True):
        assert (cycle.kind == "ssm", cycle.window, cycle.sink_blocks) == (key.ssm, key.window, key.sinks)
        assert model.share[key] == Fraction(*cycle.scratch)


def test_a_buffer_in_blocks_of_its_own_is_expanded_to_the_layouts() -> None:
    """Scales of 8 tokens in a layout of 32: four of them to a block."""
    layer = Attention([Buffer("key", 4096), Buffer("scale", 64, tokens_per_block=8), Buffer("bias", 256)])
    assert CacheLayout(32, [layer]).groups[0].slot_bytes == (4096, 2 * 256)


def test_sinks_count_in_blocks_and_no_sinks_are_no_sinks() -> None:
    layers = [one_buffer(64, 1, sinks=9), one_buffer(64, 2, sinks=16), one_buffer(64, 3), one_buffer(64, 4, sinks=0)]
    assert [cycle.sink_blocks for cycle in CacheLayout(8, layers).life_cycles] == [2, 0]


def test_all_ssm_layers_share_a_life_cycle_and_a_group_of_their_own_is_constant() -> None:
    layout = CacheLayout(8, [Ssm([Buffer("a", 3)]), one_buffer(None, 8), Ssm([Buffer("b", 5)])])
    assert [cycle.key for cycle in layout.life_cycles] == [("ssm", None, 0), ("attention", None, 0)]
    assert [group.constant for group in layout.groups] == [True, False]
    assert layout.life_cycles[0].layers == (0, 2)
    mixed = CacheLayout(8, [Ssm([Buffer("a", 8)]), one_buffer(None, 8)])
    assert [group.constant for group in mixed.groups] == [False]


def test_a_count_is_that_many_layers() -> None:
    layer = Attention([Buffer("key", 64), Buffer("value", 64)], 32)
    counted = CacheLayout(8, [layer._replace(count=5)])
    written = CacheLayout(8, [layer] * 5)
    assert counted.groups == written.groups
    assert counted.life_cycles[0].scratch == written.life_cycles[0].scratch == (2, 10)


def test_keys_do_not_depend_on_which_layers_a_rank_has() -> None:
    layers = [one_buffer(None, 8), one_buffer(16, 4), one_buffer(32, 2)]
    first, last = CacheLayout(8, layers[:2]), CacheLayout(8, layers[1:])
    assert {cycle.key for cycle in first.life_cycles} & {cycle.key for cycle in last.life_cycles} == {
        ("attention", 16, 0)
    }


@pytest.mark.parametrize("module", ["torch", "numpy", "dataclasses", "inspect", "json", "logging"])
def test_planning_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, vmmcache.planning; print({module!r} in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "False"
