"""A decoder-only transformer in plain torch, over any paged cache.

The arithmetic is that of Llama, Mistral, Qwen3 and Gemma 3: RMSNorm, grouped-query attention with rotary embedding, a
gated MLP, logits. The *weights are random*, from a fixed seed, and float32: what the demo shows is the cache, not a
model's knowledge. Two caches that give back the same keys and values give the same logits, bit for bit.

With the same weights, four layers, eager attention and float32, transformers 5.24.0 gave the same logits to within 4e-6
for each of the four.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from vmmcache.demo.paged import attend, write
from vmmcache.demo.rope import Rope, rotate
from vmmcache.demo.shape import DecoderShape

__all__ = ["Decoder"]

_SPREAD: Final = 0.1
"""Standard deviation of a norm's weights around 1: far enough from 1 to matter, near enough to be a norm."""


@dataclass(frozen=True, slots=True)
class _Layer:
    queries: Tensor  # [heads * head_dim, hidden]
    keys: Tensor  # [kv_heads * head_dim, hidden]
    values: Tensor  # [kv_heads * head_dim, hidden]
    out: Tensor  # [hidden, heads * head_dim]
    gate: Tensor  # [intermediate, hidden]
    up: Tensor  # [intermediate, hidden]
    down: Tensor  # [hidden, intermediate]
    before_attention: Tensor  # [hidden], as the three below
    after_attention: Tensor
    before_mlp: Tensor
    after_mlp: Tensor
    query_norm: Tensor  # [head_dim]
    key_norm: Tensor  # [head_dim]


class Decoder:
    """A decoder of a given shape with random weights.

    Parameters
    ----------
    shape
        What the model looks like.
    device
        Where torch keeps the weights.
    seed
        The same seed gives the same weights on every device: they are drawn on the CPU.
    """

    def __init__(self, shape: DecoderShape, *, device: str = "cpu", seed: int = 0) -> None:
        self.shape: Final = shape
        self.device: Final = torch.device(device)
        self._dice = torch.Generator().manual_seed(seed)
        self._embedding = self._matrix(shape.vocabulary, shape.hidden)
        self._layers = [self._layer() for _ in range(shape.layers)]
        self._last_norm = self._norm(shape.hidden)
        self._head = self._matrix(shape.vocabulary, shape.hidden)
        self._frequencies = {
            rope: torch.tensor(rope.frequencies(shape.head_dim), device=self.device) for rope in set(shape.ropes)
        }

    @torch.no_grad()
    def __call__(self, tokens: Tensor, positions: Tensor, tables: Tensor, cache: Sequence[Tensor]) -> Tensor:
        """Run some tokens of some requests through the model, and leave their keys and values in the cache.

        Parameters
        ----------
        tokens, positions
            [requests, tokens]; the tokens before them must be in the cache already.
        tables
            [requests, blocks], as in `paged.attend`.
        cache
            One tensor for each layer, as in `paged`.

        Returns
        -------
        Tensor
            Logits after the last token of each request: [requests, vocabulary], float32.
        """
        shape = self.shape
        states = self._embedding[tokens]
        if shape.scaled_embedding:
            states = states * math.sqrt(shape.hidden)
        turns = {rope: self._angles(rope, positions) for rope in self._frequencies}
        for layer, kept, rope, window in zip(self._layers, cache, shape.ropes, shape.windows, strict=True):
            normed = self._rms(states, layer.before_attention)
            queries, keys, values = self._project(layer, normed, *turns[rope])
            write(kept, tables, positions, keys, values)
            seen = attend(queries, kept, tables, positions, scale=shape.attention_scale, window=window)
            mixed = functional.linear(seen, layer.out)
            states = states + (self._rms(mixed, layer.after_attention) if shape.sandwich else mixed)
            mixed = self._mlp(layer, self._rms(states, layer.before_mlp))
            states = states + (self._rms(mixed, layer.after_mlp) if shape.sandwich else mixed)
        return functional.linear(self._rms(states[:, -1], self._last_norm), self._head)

    def _project(self, layer: _Layer, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape, (requests, tokens, _) = self.shape, normed.shape
        queries = functional.linear(normed, layer.queries).view(requests, tokens, shape.heads, shape.head_dim)
        keys = functional.linear(normed, layer.keys).view(requests, tokens, shape.kv_heads, shape.head_dim)
        values = functional.linear(normed, layer.values).view(requests, tokens, shape.kv_heads, shape.head_dim)
        if shape.qk_norm:
            queries, keys = self._rms(queries, layer.query_norm), self._rms(keys, layer.key_norm)
        return rotate(queries, cos, sin), rotate(keys, cos, sin), values

    def _mlp(self, layer: _Layer, states: Tensor) -> Tensor:
        gate = functional.linear(states, layer.gate)
        gate = functional.silu(gate) if self.shape.activation == "silu" else functional.gelu(gate, approximate="tanh")
        return functional.linear(gate * functional.linear(states, layer.up), layer.down)

    def _rms(self, states: Tensor, weight: Tensor) -> Tensor:
        """Divide by the root of the mean square (Zhang and Sennrich, arXiv:1910.07467)."""
        return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.shape.eps) * weight

    def _angles(self, rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None, None].float() * self._frequencies[rope]
        return angles.cos(), angles.sin()

    def _layer(self) -> _Layer:
        shape = self.shape
        hidden, wide, narrow = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return _Layer(
            queries=self._matrix(wide, hidden),
            keys=self._matrix(narrow, hidden),
            values=self._matrix(narrow, hidden),
            out=self._matrix(hidden, wide),
            gate=self._matrix(shape.intermediate, hidden),
            up=self._matrix(shape.intermediate, hidden),
            down=self._matrix(hidden, shape.intermediate),
            before_attention=self._norm(hidden),
            after_attention=self._norm(hidden),
            before_mlp=self._norm(hidden),
            after_mlp=self._norm(hidden),
            query_norm=self._norm(shape.head_dim),
            key_norm=self._norm(shape.head_dim),
        )

    def _matrix(self, rows: int, columns: int) -> Tensor:
        # 1 / sqrt(columns) keeps the states' size from layer to layer, so that no softmax saturates.
        return torch.randn(rows, columns, generator=self._dice).div_(math.sqrt(columns)).to(self.device)

    def _norm(self, size: int) -> Tensor:
        return torch.randn(size, generator=self._dice).mul_(_SPREAD).add_(1).to(self.device)
