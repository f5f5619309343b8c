"""Attention over a paged cache, written out: keys and values are found through block tables.

A layer's cache is one tensor ``[blocks, 2, block_tokens, kv_heads, head_dim]``, index 0 of the second axis for keys and
1 for values. Blocks are the outermost axis, so a layer that gets more blocks keeps every address it had.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["attend", "write"]

_TOGETHER: Final = 8
"""Requests whose keys and values are gathered at once: few enough that a CPU still has them in its cache when it uses
them, which makes attention more than twice as fast as for a whole batch."""


def write(layer: Tensor, tables: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
    """Store the keys and values of some tokens.

    Parameters
    ----------
    layer
        The layer's cache, written in place.
    tables
        [requests, blocks of a request]: which block holds the request's n-th ``block_tokens`` tokens.
    positions
        [requests, tokens]: where in its request each token stands.
    keys, values
        [requests, tokens, kv_heads, head_dim], of any floating dtype; rounded to the cache's.
    """
    block_tokens = layer.shape[2]
    blocks = tables.gather(1, positions // block_tokens)
    offsets = positions % block_tokens
    layer[blocks, 0, offsets] = keys.to(layer.dtype)
    layer[blocks, 1, offsets] = values.to(layer.dtype)


def attend(
    queries: Tensor, layer: Tensor, tables: Tensor, positions: Tensor, *, scale: float, window: int | None
) -> Tensor:
    """Attend to everything of the same request at or before each query's position, or to its last `window` positions.

    Parameters
    ----------
    queries
        [requests, tokens, heads, head_dim]; ``heads`` is a multiple of the cache's ``kv_heads``, and neighbouring heads
        share a key and a value (grouped-query attention).
    layer, tables, positions
        As in `write`; a table's entries beyond the request's last block may name any block, they are masked.
    scale
        Multiplied into the scores before the softmax.

    Returns
    -------
    Tensor
        [requests, tokens, heads * head_dim], in the queries' dtype.
    """
    groups = zip(queries.split(_TOGETHER), tables.split(_TOGETHER), positions.split(_TOGETHER), strict=True)
    return torch.cat([_attend(some, layer, *rest, scale=scale, window=window) for some, *rest in groups])


def _attend(
    queries: Tensor, layer: Tensor, tables: Tensor, positions: Tensor, *, scale: float, window: int | None
) -> Tensor:
    requests, tokens, heads, head_dim = queries.shape
    kv_heads = layer.shape[3]
    keys, values = (_gather(layer[:, half], tables, queries.dtype) for half in (0, 1))
    # Rows of one key-value head together: its group of query heads, each with all its tokens.
    grouped = queries.view(requests, tokens, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    scores = grouped.reshape(requests, kv_heads, -1, head_dim) @ keys.transpose(-1, -2) * scale
    scores = scores.view(requests, kv_heads, -1, tokens, keys.shape[2])
    scores.masked_fill_(~_seen(positions, keys.shape[2], window)[:, None, None], -torch.inf)
    weights = torch.softmax(scores, dim=-1).view(requests, kv_heads, -1, keys.shape[2])
    mixed = (weights @ values).view(requests, kv_heads, -1, tokens, head_dim)
    return mixed.permute(0, 3, 1, 2, 4).reshape(requests, tokens, heads * head_dim)


def _gather(half: Tensor, tables: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring a layer's keys or values together by request: [requests, kv_heads, cached positions, head_dim]."""
    blocks = half[tables].permute(0, 3, 1, 2, 4)
    # One pass that reorders and widens.
    return blocks.to(dtype, memory_format=torch.contiguous_format).flatten(2, 3)


def _seen(positions: Tensor, length: int, window: int | None) -> Tensor:
    """Say which of `length` cached positions each query sees: [requests, tokens, length], bool."""
    cached = torch.arange(length, device=positions.device)
    seen = cached <= positions[..., None]
    if window is not None:
        # The query itself is one of the `window` positions.
        seen &= cached > positions[..., None] - window
    return seen
