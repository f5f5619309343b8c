"""Our layers and the library's own, given the same: they keep, give and announce the same (U8)."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer

from tests.fine_host import FineHostDriver
from vmmcache.errors import StateError
from vmmcache.integrations.transformers import (
    ExtensibleIndexedLayer,
    ExtensibleLayer,
    ExtensibleWindowLayer,
    Settings,
)

APPEND = st.tuples(st.just("append"), st.integers(1, 12), st.integers(0, 12))
"""Tokens, and how many of them are taken back, as after a proposal that was not accepted."""
STEPS = st.lists(
    st.one_of(
        APPEND,
        st.tuples(st.just("reorder"), st.lists(st.integers(0, 1), min_size=2, max_size=2), st.none()),
        st.tuples(st.just("record"), st.none(), st.none()),
        st.tuples(st.just("reset"), st.none(), st.none()),
    ),
    max_size=14,
)


def pair(kind: str, window: int, layout: str) -> tuple[Any, Any]:
    ours = Settings(4000, FineHostDriver(), layout=layout)
    if kind == "window":
        return ExtensibleWindowLayer(window, ours), DynamicSlidingWindowLayer(window)
    if kind == "indexed":
        return ExtensibleIndexedLayer(ours), DynamicIndexedLayer()
    return ExtensibleLayer(ours), DynamicLayer()


def same(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> bool:
    if ours is None or theirs is None or theirs.numel() == 0:
        return ours is None or ours.numel() == 0
    return torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["full", "window", "indexed"])
@settings(max_examples=30)
@given(steps=STEPS, window=st.integers(2, 9), layout=st.sampled_from(["tokens", "heads"]))
def test_what_is_kept_given_and_announced_is_the_same(kind: str, steps: list[Any], window: int, layout: str) -> None:
    ours, theirs = pair(kind, window, layout)
    number = 0
    for step, first, second in steps:
        if step == "append":
            number += 1
            states = torch.randn(2, 2, first, 16, generator=torch.Generator().manual_seed(number))
            assert ours.get_mask_sizes(first) == theirs.get_mask_sizes(first)
            given_by_both = zip(ours.update(states, states + 1), theirs.update(states, states + 1), strict=True)
            assert all(torch.equal(mine, other) for mine, other in given_by_both)
            del given_by_both
            if kind == "indexed":
                index = states[:, 0, :, :8]
                assert torch.equal(ours.update_indexer(index), theirs.update_indexer(index))
            take_back(ours, theirs, min(first, second))
        elif step == "reorder":
            for layer in (ours, theirs):
                layer.reorder_cache(torch.tensor(first))
        elif step == "record":
            if kind == "window":
                for layer in (ours, theirs):
                    layer.activate_past_recording()
        else:
            for layer in (ours, theirs):
                layer.reset()
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_max_length() == theirs.get_max_length()
        assert (ours.is_sliding, ours.is_croppable, ours.is_compileable) == (
            theirs.is_sliding,
            theirs.is_croppable,
            theirs.is_compileable,
        )
        assert same(ours.keys, theirs.keys)
        assert same(ours.values, theirs.values)
    ours.close()


def take_back(ours: Any, theirs: Any, removed: int) -> None:
    """In both, or in none: each says that it cannot."""
    try:
        theirs.crop(-removed)
    except RuntimeError:
        with pytest.raises(StateError):
            ours.crop(-removed)
    else:
        ours.crop(-removed)
