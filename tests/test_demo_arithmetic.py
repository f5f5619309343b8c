from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from vmmcache import models
from vmmcache.demo.decoder import Decoder
from vmmcache.demo.paged import attend, write
from vmmcache.demo.rope import Llama3Scaling, Rope, rotate
from vmmcache.demo.shape import DecoderShape, read_shape

BLOCK_TOKENS, KV_HEADS, HEADS, HEAD_DIM = 4, 2, 6, 8


def scattered(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A cache with the keys and values of some requests in blocks out of order: (cache, tables, keys, values)."""
    dice = torch.Generator().manual_seed(1)
    most = max(lengths)
    keys, values = (torch.randn(len(lengths), most, KV_HEADS, HEAD_DIM, generator=dice) for _ in range(2))
    columns = -(-most // BLOCK_TOKENS)
    tables = torch.randperm(len(lengths) * columns + 3, generator=dice)[: len(lengths) * columns].view(-1, columns)
    cache = torch.full((len(lengths) * columns + 3, 2, BLOCK_TOKENS, KV_HEADS, HEAD_DIM), 1e3)
    for row, length in enumerate(lengths):
        positions = torch.arange(length)[None]
        write(cache, tables[row : row + 1], positions, keys[row : row + 1, :length], values[row : row + 1, :length])
    return cache, tables, keys, values


def contiguous(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """torch's own attention of one request over contiguous keys and values, query heads sharing them in groups."""
    group = HEADS // KV_HEADS
    heads_first = (
        queries.transpose(0, 1),
        keys.repeat_interleave(group, dim=1).transpose(0, 1),
        values.repeat_interleave(group, dim=1).transpose(0, 1),
    )
    mixed = functional.scaled_dot_product_attention(*heads_first, attn_mask=seen, scale=scale)
    return mixed.transpose(0, 1).reshape(len(queries), HEADS * HEAD_DIM)


@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize("tokens", [1, 3])
def test_paged_attention_is_attention_over_contiguous_keys_and_values(tokens: int, window: int | None) -> None:
    # More requests than are gathered at once.
    lengths = [11, 4, 7, 3, 12, 5, 8, 6, 9, 10]
    cache, tables, keys, values = scattered(lengths)
    queries = torch.randn(len(lengths), tokens, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([[length - tokens + place for place in range(tokens)] for length in lengths])
    found = attend(queries, cache, tables, positions, scale=0.3, window=window)
    for row, length in enumerate(lengths):
        distance = positions[row][:, None] - torch.arange(length)
        seen = (distance >= 0) & (distance < (window or length))
        expected = contiguous(queries[row], keys[row, :length], values[row, :length], seen, 0.3)
        torch.testing.assert_close(found[row], expected)


def test_what_fills_up_a_table_is_never_attended_to() -> None:
    cache, tables, _, _ = scattered([11, 4])
    queries = torch.randn(2, 1, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([[10], [3]])
    expected = attend(queries, cache, tables, positions, scale=0.3, window=None)
    other = tables.clone()
    other[1, 1:] = tables[0, 0]
    assert torch.equal(attend(queries, cache, other, positions, scale=0.3, window=None), expected)


def test_writing_touches_only_the_slots_of_its_tokens() -> None:
    cache = torch.zeros(3, 2, BLOCK_TOKENS, KV_HEADS, HEAD_DIM)
    ones = torch.ones(1, 2, KV_HEADS, HEAD_DIM)
    write(cache, torch.tensor([[2, 0]]), torch.tensor([[3, 4]]), ones, 2 * ones)
    expected = torch.zeros_like(cache)
    expected[2, 0, 3], expected[2, 1, 3], expected[0, 0, 0], expected[0, 1, 0] = 1, 2, 1, 2
    assert torch.equal(cache, expected)


def test_rotation_keeps_lengths_and_makes_scores_depend_on_distance_only() -> None:
    frequencies = torch.tensor(Rope(10_000.0).frequencies(HEAD_DIM))
    query, key = torch.randn(2, 1, 1, 1, HEAD_DIM, generator=torch.Generator().manual_seed(3))

    def at(states: Tensor, position: int) -> Tensor:
        angles = position * frequencies
        return rotate(states, angles.cos(), angles.sin())

    assert not torch.allclose(at(query, 9), query)
    torch.testing.assert_close(at(query, 9).norm(), query.norm())
    torch.testing.assert_close((at(query, 9) * at(key, 4)).sum(), (at(query, 105) * at(key, 100)).sum())


def test_rotation_turns_each_pair_by_its_own_angle() -> None:
    states = torch.zeros(1, 1, 1, 4)
    states[..., 1] = 1
    turned = rotate(states, torch.tensor([1.0, math.cos(0.5)]), torch.tensor([0.0, math.sin(0.5)]))
    torch.testing.assert_close(turned.flatten(), torch.tensor([0, math.cos(0.5), 0, math.sin(0.5)]))
    assert Rope(10_000.0).frequencies(4) == pytest.approx((1.0, 0.01))


def test_llama3_scaling_keeps_fast_pairs_slows_slow_ones_and_blends_between() -> None:
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
    turns = 2 * math.pi / 8192
    assert scaling(5 * turns) == 5 * turns
    assert scaling(0.5 * turns) == pytest.approx(0.5 * turns / 8)
    # Half way between 1 and 4 turns: half of the frequency, and half of the slowed one.
    assert scaling(2.5 * turns) == pytest.approx(2.5 * turns * (0.5 + 0.5 / 8))


@pytest.mark.parametrize("model", models.names())
def test_token_by_token_gives_the_logits_of_the_whole_prompt(model: str) -> None:
    """The cache's part in the arithmetic: what was written at one step is what a later step reads."""
    config = models.load(model) | {"num_hidden_layers": 6, "sliding_window": 5}
    shape = read_shape(config).trimmed(hidden=32, intermediate=32, vocabulary=64)
    decoder = Decoder(shape, seed=4)
    tokens = torch.randint(64, (1, 13), generator=torch.Generator().manual_seed(5))
    tables = torch.tensor([[3, 1, 0, 2]])

    def empty() -> list[Tensor]:
        size = (4, 2, BLOCK_TOKENS, shape.kv_heads, shape.head_dim)
        return [torch.zeros(size) for _ in range(shape.layers)]

    whole = decoder(tokens, torch.arange(13)[None], tables, empty())
    cache = empty()
    for place in range(13):
        single = decoder(tokens[:, place : place + 1], torch.tensor([[place]]), tables, cache)
    torch.testing.assert_close(single, whole, rtol=1e-4, atol=1e-4)
    assert whole.shape == (1, 64)
    assert float(whole.std()) > 0.1


@pytest.mark.parametrize(
    "change",
    [
        lambda shape: replace(shape, qk_norm=False),
        lambda shape: replace(shape, sandwich=False),
        lambda shape: replace(shape, scaled_embedding=False),
        lambda shape: replace(shape, activation="silu"),
        lambda shape: replace(shape, windows=(2, 2)),
        lambda shape: replace(shape, ropes=shape.ropes[::-1]),
        lambda shape: replace(shape, attention_scale=1.0),
        lambda shape: replace(shape, eps=1.0),
    ],
    ids=["qk_norm", "sandwich", "scaled_embedding", "activation", "windows", "ropes", "attention_scale", "eps"],
)
def test_every_particularity_of_a_model_changes_its_logits(change: Callable[[DecoderShape], DecoderShape]) -> None:
    shape = read_shape(models.load("gemma-3-1b") | {"num_hidden_layers": 2, "sliding_window_pattern": 2})
    shape = shape.trimmed(hidden=32, intermediate=32, vocabulary=64)
    logits = []
    for variant in (shape, change(shape)):
        cache = [torch.zeros(4, 2, BLOCK_TOKENS, shape.kv_heads, shape.head_dim) for _ in range(2)]
        tokens = torch.arange(8)[None]
        logits.append(Decoder(variant, seed=6)(tokens, tokens, torch.tensor([[0, 1]]), cache))
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize(("model", "normalised"), [("qwen3-0.6b", True), ("llama-3.1-8b", False)])
@pytest.mark.parametrize("matrix", ["queries", "keys"])
def test_queries_and_keys_lose_their_length_where_the_model_normalises_them(
    model: str, normalised: bool, matrix: str
) -> None:
    shape = read_shape(models.load(model) | {"num_hidden_layers": 1, "rms_norm_eps": 1e-12})
    decoder = Decoder(shape.trimmed(hidden=32, intermediate=32, vocabulary=64), seed=6)
    tokens = torch.arange(8)[None]
    logits = []
    for _ in range(2):
        cache = [torch.zeros(2, 2, BLOCK_TOKENS, shape.kv_heads, shape.head_dim)]
        logits.append(decoder(tokens, tokens, torch.tensor([[0, 1]]), cache))
        getattr(decoder._layers[0], matrix).mul_(3)
    assert torch.allclose(logits[0], logits[1], atol=1e-4) is normalised


def test_the_same_seed_gives_the_same_decoder() -> None:
    shape = read_shape(models.load("qwen3-0.6b") | {"num_hidden_layers": 1})
    shape = shape.trimmed(hidden=32, intermediate=32, vocabulary=64)
    tokens = torch.arange(4)[None]

    def logits(seed: int) -> Tensor:
        cache = [torch.zeros(1, 2, BLOCK_TOKENS, shape.kv_heads, shape.head_dim)]
        return Decoder(shape, seed=seed)(tokens, tokens, torch.tensor([[0]]), cache)

    assert torch.equal(logits(7), logits(7))
    assert not torch.equal(logits(7), logits(8))
