"""The decoder: random weights, real arithmetic, and sums that are exact (see `exact`).

RMSNorm, grouped-query attention with rotary embedding over all tokens or over a sliding window, a gated MLP, and
state-space layers: a short causal convolution before a state that decays and takes in each token's outer product
(retention, Sun et al., arXiv:2307.08621). Weights are drawn from a seed: what is shown is the cache, not knowledge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from tinyllm.exact import DTYPE, snap
from tinyllm.paged import AttentionCache, StateCache, Table, attend
from tinyllm.shape import Kind, ModelShape

__all__ = ["Combine", "Model", "alone"]

Combine = Callable[[Tensor], Tensor]
"""Adds up what the tensor-parallel ranks have each computed of a layer's output."""

_THETA: Final = 10_000.0
_EPS: Final = 2.0**-12


def alone(partial: Tensor) -> Tensor:
    """Combine what there is only one of."""
    return partial


@dataclass(frozen=True, slots=True)
class _Weights:
    """One layer. A rank holds its heads and its columns."""

    queries: Tensor  # [heads * head_dim, hidden]
    keys: Tensor  # [kv_heads * head_dim, hidden]
    values: Tensor  # [kv_heads * head_dim, hidden]
    out: Tensor  # [hidden, heads * head_dim]
    gate: Tensor  # [intermediate, hidden]
    up: Tensor  # [intermediate, hidden]
    down: Tensor  # [hidden, intermediate]
    decay: Tensor  # [kv_heads, 1, 1]
    taps: Tensor  # [kv_heads, head_dim, taps]


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder of a given shape.

    Parameters
    ----------
    shape
        The whole model.
    device
        Where torch keeps the weights.
    rank, ranks
        Which part of heads and columns this process computes, of how many.
    combine
        Sums over the ranks. The sums are exact, so several ranks give one rank's logits bit for bit.
    """

    shape: ModelShape
    device: str = "cpu"
    rank: int = 0
    ranks: int = 1
    combine: Combine = alone
    seed: int = 0
    _layers: list[_Weights] = field(init=False, repr=False)
    _embedding: Tensor = field(init=False, repr=False)
    _head: Tensor = field(init=False, repr=False)
    _frequencies: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        dice = torch.Generator().manual_seed(self.seed)
        shape, pairs = self.shape, torch.arange(self.shape.head_dim // 2, dtype=DTYPE)
        set_once = object.__setattr__
        set_once(self, "_embedding", self._draw(dice, shape.vocabulary, shape.hidden, spread=1.0))
        set_once(self, "_layers", [self._layer(dice) for _ in shape.layers])
        set_once(self, "_head", self._draw(dice, shape.vocabulary, shape.hidden))
        set_once(self, "_frequencies", (_THETA ** (-2 * pairs / shape.head_dim)).to(self.device))

    @property
    def part(self) -> ModelShape:
        """What this rank holds."""
        return self.shape.share(self.ranks)

    @torch.no_grad()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        tables: Mapping[Kind, Table],
        caches: Sequence[AttentionCache | StateCache],
    ) -> Tensor:
        """Run some tokens of some requests, and leave what they add to the cache in it.

        Parameters
        ----------
        tokens, positions
            [requests, tokens]; the tokens before them must be in the cache already.
        tables
            Where each request's blocks lie; for states, one column.
        caches
            One for each layer, as `paged.bind` gives them.

        Returns
        -------
        Tensor
            Logits after the last token of each request: [requests, vocabulary].
        """
        states = self._embedding[tokens]
        angles = positions[..., None, None] * self._frequencies
        turn = snap(angles.cos()), snap(angles.sin())
        for kind, weights, cache in zip(self.shape.layers, self._layers, caches, strict=True):
            normed = _normalised(states)
            if isinstance(cache, StateCache):
                mixed = self._remember(weights, cache, tables[kind].slots[:, 0], positions[:, :1], normed)
            else:
                window = self.shape.window if kind == "window" else None
                queries, keys, values = self._project(weights, normed)
                mixed = attend(
                    cache, tables[kind], positions, _rotate(queries, *turn), _rotate(keys, *turn), values, window
                )
            gate = linear(normed, weights.gate)
            inner = snap(gate * torch.sigmoid(gate) * linear(normed, weights.up))
            # Beside each other, not one after the other: the ranks meet once a layer (GPT-J, PaLM: arXiv:2204.02311).
            states = snap(states + self.combine(linear(mixed, weights.out) + linear(inner, weights.down)))
        return linear(_normalised(states[:, -1]), self._head)

    def _project(self, weights: _Weights, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [requests, tokens, heads, head_dim] each."""
        shapes = normed.shape[:2]
        queries, keys, values = (
            snap(linear(normed, matrix)).view(*shapes, -1, self.shape.head_dim)
            for matrix in (weights.queries, weights.keys, weights.values)
        )
        return queries, keys, values

    def _remember(self, weights: _Weights, cache: StateCache, slots: Tensor, starts: Tensor, normed: Tensor) -> Tensor:
        """Take tokens into the states one after another, and read each state as it is then."""
        queries, keys, values = self._project(weights, normed)
        # A slot still holds what its last owner left; a request that starts has seen nothing.
        started = (starts > 0)[..., None]
        before = cache.inputs[slots] * started[..., None]
        state = cache.state[slots] * started[..., None]
        inputs = torch.cat([before, values], dim=1)
        tokens, taps = values.shape[1], weights.taps.shape[-1]
        values = snap((inputs.unfold(1, taps, 1) * weights.taps).sum(-1))
        keys = snap(keys / math.sqrt(self.shape.head_dim))
        queries = queries.unflatten(2, (keys.shape[2], -1))
        read = []
        for token in range(tokens):
            state = snap(state * weights.decay + keys[:, token, :, :, None] * values[:, token, :, None])
            read.append(queries[:, token] @ state)
        cache.state[slots] = state
        cache.inputs[slots] = inputs[:, tokens:]
        return _normalised(snap(torch.stack(read, dim=1))).flatten(2)

    def _layer(self, dice: torch.Generator) -> _Weights:
        shape, width = self.shape, self.shape.head_dim
        rows, narrow = shape.heads * width, shape.kv_heads * width
        # Half of what a state holds is forgotten after 2, 4, 8, ... tokens.
        decay = torch.tensor([2.0 ** -(2.0**-head) for head in range(1, shape.kv_heads + 1)], dtype=DTYPE)
        return _Weights(
            queries=self._draw(dice, rows, shape.hidden, split=0),
            keys=self._draw(dice, narrow, shape.hidden, split=0),
            values=self._draw(dice, narrow, shape.hidden, split=0),
            out=self._draw(dice, shape.hidden, rows, split=1),
            gate=self._draw(dice, shape.intermediate, shape.hidden, split=0),
            up=self._draw(dice, shape.intermediate, shape.hidden, split=0),
            down=self._draw(dice, shape.hidden, shape.intermediate, split=1),
            decay=self._mine(snap(decay)[:, None, None], 0),
            taps=self._draw(dice, narrow, shape.taps, split=0).unflatten(0, (-1, width)),
        )

    def _draw(self, dice: torch.Generator, *size: int, split: int | None = None, spread: float | None = None) -> Tensor:
        # 1 / sqrt(columns) keeps the states' size from layer to layer, so that no softmax saturates.
        drawn = torch.randn(*size, generator=dice, dtype=DTYPE) * (spread or 1 / math.sqrt(size[-1]))
        return self._mine(snap(drawn), split)

    def _mine(self, weights: Tensor, split: int | None) -> Tensor:
        """This rank's part of what all ranks draw alike, so that they need not send each other anything."""
        part = weights if split is None else weights.chunk(self.ranks, split)[self.rank]
        return part.contiguous().to(self.device)


def _normalised(states: Tensor) -> Tensor:
    """Divide by the root of the mean square (Zhang and Sennrich, arXiv:1910.07467)."""
    return snap(states / (states.square().mean(-1, keepdim=True) + _EPS).sqrt())


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of elements by their position's angles (Su et al., arXiv:2104.09864)."""
    first, second = states.chunk(2, dim=-1)
    return snap(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
