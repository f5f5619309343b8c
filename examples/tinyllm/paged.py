"""Where a layer's keys, values and states lie, and attention that finds them through block tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tinyllm.exact import DTYPE, softmax
from tinyllm.shape import ModelShape

__all__ = ["AttentionCache", "StateCache", "Table", "attend", "bind"]


class AttentionCache(NamedTuple):
    """One layer's blocks: keys and values, [slots, block_tokens, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor


class StateCache(NamedTuple):
    """One layer's states: [slots, heads, head_dim, head_dim], and the inputs before: [slots, taps - 1, heads, dim]."""

    state: Tensor
    inputs: Tensor


class Table(NamedTuple):
    """Where the blocks of each request of a batch lie."""

    slots: Tensor
    """[requests, columns]: a slot for each of some neighbouring blocks. Beyond the last one any slot will do."""
    first: Tensor
    """[requests, 1]: which block the first column is; those before it have left the window."""


def bind(shape: ModelShape, views: Mapping[str, Mapping[str, Tensor]]) -> list[AttentionCache | StateCache]:
    """Give each layer its typed views over the manager's bytes.

    Parameters
    ----------
    views
        As `KVCacheManager.views` gives them: layer name -> role -> uint8 [slots, ..., bytes].
    """
    block = (shape.block_tokens, shape.kv_heads, shape.head_dim)
    state = (shape.kv_heads, shape.head_dim, shape.head_dim)
    inputs = (shape.taps - 1, shape.kv_heads, shape.head_dim)

    def typed(view: Tensor, parts: tuple[int, ...]) -> Tensor:
        # A view, not a copy: flatten would be one only where a slot's bytes were not side by side.
        elements: Tensor = view.flatten(1).view(DTYPE)
        return elements.view(-1, *parts)

    caches: list[AttentionCache | StateCache] = []
    for layer, kind in enumerate(shape.layers):
        roles = views[shape.name(layer)]
        if kind == "state":
            caches.append(StateCache(typed(roles["state"], state), typed(roles["inputs"], inputs)))
        else:
            caches.append(AttentionCache(typed(roles["key"], block), typed(roles["value"], block)))
    return caches


def attend(
    cache: AttentionCache,
    table: Table,
    positions: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None,
) -> Tensor:
    """Store some tokens' keys and values, then attend to everything at or before each of them, or to `window` of it.

    Parameters
    ----------
    positions
        [requests, tokens]: where in its request each token stands.
    queries
        [requests, tokens, heads, head_dim]; neighbouring heads share a key and a value.
    keys, values
        [requests, tokens, kv_heads, head_dim].

    Returns
    -------
    Tensor
        [requests, tokens, heads * head_dim].
    """
    block_tokens = cache.keys.shape[1]
    slots = table.slots.gather(1, positions // block_tokens - table.first)
    offsets = positions % block_tokens
    cache.keys[slots, offsets] = keys
    cache.values[slots, offsets] = values

    requests, tokens, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    seen_keys, seen_values = (part[table.slots].flatten(1, 2).transpose(1, 2) for part in cache)
    # The rows of one key-value head together: its group of query heads, each with all its tokens.
    grouped = queries.view(requests, tokens, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    scores = grouped.reshape(requests, kv_heads, -1, head_dim) @ seen_keys.transpose(-1, -2) / math.sqrt(head_dim)
    cached = table.first * block_tokens + torch.arange(scores.shape[-1], device=positions.device)
    distance = positions[:, :, None] - cached[:, None]
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    scores = scores.view(requests, kv_heads, -1, tokens, scores.shape[-1])
    scores.masked_fill_(hidden[:, None, None], -torch.inf)
    mixed = softmax(scores.flatten(2, 3), seen_values).view(requests, kv_heads, -1, tokens, head_dim)
    return mixed.permute(0, 3, 1, 2, 4).reshape(requests, tokens, heads * head_dim)
