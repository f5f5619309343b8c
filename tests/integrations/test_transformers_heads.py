"""U8, B5: heads outermost in memory: where, what it costs, and that nobody touches what lies between them."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import transformers

from tests.fine_host import FINE, FineHostDriver
from tests.integrations.small_models import SMALL
from tests.integrations.states import PER_GRANULE, ROW, RUNS, by_token, count, states
from vmmcache.errors import ConfigError
from vmmcache.integrations.transformers import ExtensibleCache, ExtensibleLayer, ExtensibleWindowLayer, Settings
from vmmcache.integrations.transformers.heads import by_head
from vmmcache.testing import RecordingDriver

CPU = ((2, 2, 64), torch.float32)
WIDE = ((2, 8, 64), torch.float32)
WIDER = ((2, 9, 64), torch.float32)


@pytest.mark.parametrize(
    ("rows", "needed", "granule", "device", "heads"),
    [
        ([CPU, CPU], 1 << 16, 2 << 20, "cpu", True),
        ([CPU, CPU], (1 << 16) - 1, 2 << 20, "cpu", False),  # a token less than eight granules hold
        ([CPU, CPU], 1 << 11, 64 << 10, "cpu", True),
        ([CPU, ((2, 2, 32), torch.float32)], 1 << 16, 2 << 20, "cpu", False),  # values are narrower than keys
        ([WIDE, WIDE], 1 << 20, 2 << 20, "cpu", True),
        ([WIDE, WIDER], 1 << 20, 2 << 20, "cpu", False),  # 34 runs
        ([CPU, CPU], 1 << 20, 2 << 20, "cuda", False),
        ([((2, 0, 64), torch.float32), ((2, 0, 0), torch.float32)], 1 << 20, 2 << 20, "cpu", False),  # nothing
    ],
)
def test_heads_are_outermost_where_that_is_worth_it(
    rows: Any, needed: int, granule: int, device: str, heads: bool
) -> None:
    assert by_head("auto", rows, needed, granule, device) is heads
    assert by_head("heads", rows, needed, granule, device) is True
    assert by_head("tokens", rows, needed, granule, device) is False


def test_the_layout_is_chosen_for_what_there_is(fine: FineHostDriver) -> None:
    """The rule is asked anew where a batch changes its size; a window counts what it needs and not all addresses."""
    layer: Any = ExtensibleLayer(Settings(1 << 20, fine, layout="auto"))
    layer.update(states(3), states(3))
    assert layer.keys.stride()[2] == 64
    layer.batch_repeat_interleave(16)
    assert layer.keys.stride()[2] == 32 * 128  # 128 runs would be too many
    assert torch.equal(layer.keys, states(3).repeat_interleave(16, dim=0))
    layer.batch_select_indices(torch.tensor([0, 16]))
    assert layer.keys.stride()[2] == 64
    window: Any = ExtensibleWindowLayer(8 * 256 - 1, Settings(1 << 20, fine, layout="auto"))
    window.update(states(3), states(3))
    assert window.keys.stride()[2] == 256
    wider: Any = ExtensibleWindowLayer(8 * 256, Settings(1 << 20, fine, layout="auto"))
    wider.update(states(3), states(3))
    assert wider.keys.stride()[2] == 64
    asked: Any = ExtensibleLayer(by_token(1 << 20, fine))
    asked.update(states(3), states(3))
    asked.batch_select_indices(torch.tensor([0]))
    assert asked.keys.stride()[2] == 128
    for each in (layer, window, wider, asked):
        each.close()


def test_states_can_be_saved_and_copied_whole_where_nothing_else_was_asked_for(fine: FineHostDriver) -> None:
    """I6: nobody meets an address without memory who has not asked for heads."""
    with ExtensibleCache(transformers.LlamaConfig(**SMALL), device=fine) as cache:
        keys = cache.update(states(3), states(3), 0)[0]
        assert keys.untyped_storage().nbytes() == cache.tensors[0].committed[0]
        saved = io.BytesIO()
        torch.save(keys, saved)
        saved.seek(0)
        assert torch.equal(torch.load(saved), keys)
        assert torch.equal(copy.deepcopy(keys), keys)
        del keys


def test_values_without_elements_take_no_runs(fine: FineHostDriver, layout: str) -> None:
    """Latent attention may keep everything with the keys."""
    layer: Any = ExtensibleLayer(Settings(1 << 20, fine, layout=layout))
    keys, values = layer.update(states(3), torch.empty(2, 2, 3, 0))
    assert torch.equal(keys, states(3))
    assert values.shape == (2, 2, 3, 0)
    assert layer.tensors[0].committed_bytes == (RUNS[layout] + 1) * FINE
    del keys, values
    layer.close()


@pytest.mark.parametrize("bad", ["head", "", None, 1])
def test_there_are_three_layouts(bad: Any) -> None:
    with pytest.raises(ConfigError, match="one of auto, tokens, heads"):
        ExtensibleCache(transformers.LlamaConfig(**SMALL), layout=bad)


def test_each_head_of_a_sequence_stands_together(recording: RecordingDriver) -> None:
    """Heads outermost: its tokens follow one another, appending moves nothing (I1), what is unused stays an eighth."""
    layer: Any = ExtensibleLayer(Settings(1 << 20, recording, layout="heads"))
    addresses, unused = set(), []
    for token in range(0, 40 * PER_GRANULE, 3):
        keys, values = layer.update(states(3, token), states(3, token))
        addresses.add((keys.data_ptr(), values.data_ptr()))
        unused.append(layer.tensors[0].committed_bytes - 2 * (token + 3) * ROW)
    assert torch.equal(keys, states(keys.shape[2]))
    assert len(addresses) == 1
    run = keys.stride()[1]
    assert keys.stride() == (2 * run, run, 64, 1)
    assert run * 4 >= (1 << 20) * 256  # of addresses, for all tokens that a head may have
    # A granule for each of eight runs that is used in part, and an eighth of the ten that are.
    assert max(unused) <= 8 * (10 * FINE // 8 + FINE)
    assert (count(recording, "copy"), count(recording, "unmap")) == (0, 0)
    del keys, values
    layer.close()


@pytest.mark.parametrize(("width", "dtype"), [(64, torch.float32), (16, torch.bfloat16), (8, torch.float64)])
def test_kernels_touch_no_byte_beside_their_head(fine: FineHostDriver, width: int, dtype: torch.dtype) -> None:
    """Behind the last token of each head nothing is mapped: whoever reads or writes one byte too many dies of it."""
    full = FINE // (width * dtype.itemsize)
    layer: Any = ExtensibleLayer(Settings(1 << 20, fine, layout="heads"))
    plain = torch.randn(2, 3, full, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    layer.update(plain[:, :, :-1], plain[:, :, :-1])
    layer.update(plain[:, :, -1:], plain[:, :, -1:])
    layer.trim()
    keys, values = layer.keys, layer.values
    assert layer.tensors[0].committed_bytes == 12 * FINE
    attend = torch.nn.functional.scaled_dot_product_attention
    for length in (1, 5):
        query = torch.randn(2, 6, length, width, generator=torch.Generator().manual_seed(1)).to(dtype)
        mask = torch.ones(length, full, dtype=torch.bool).tril(full - length)
        for more in ({"enable_gqa": True}, {"enable_gqa": True, "attn_mask": mask}):
            assert torch.equal(attend(query, keys, values, **more), attend(query, plain, plain, **more))
        grouped = query.view(2, 3, 2 * length, width)
        assert torch.equal(grouped @ keys.transpose(2, 3), grouped @ plain.transpose(2, 3))
    assert torch.equal(keys.clone(), plain)
    assert torch.equal(keys.repeat_interleave(2, dim=1), plain.repeat_interleave(2, dim=1))
    layer.reorder_cache(torch.tensor([1, 0]))
    assert torch.equal(values.contiguous(), plain[[1, 0]])
    del keys, values
    layer.close()
