"""Rotary position embedding: pairs of elements turned by an angle that grows with the position.

Element ``d`` of the first half of a head is paired with element ``d`` of the second half, as the checkpoints of these
models are laid out. Pair ``d`` turns by ``position * theta ** (-2 d / head_dim)`` (Su et al., RoFormer,
arXiv:2104.09864).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Llama3Scaling", "Rope", "rotate"]


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """How Llama 3.1 stretches slow frequencies over a longer context (``rope_type`` "llama3" of its config.json)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    def __call__(self, frequency: float) -> float:
        """Give the scaled frequency, in radians per position.

        A pair that turns more than `high_freq_factor` times within the original context keeps its frequency, one that
        turns less than `low_freq_factor` times is slowed down by `factor`, and between them the two are blended
        linearly in the number of turns.
        """
        turns = self.original_positions * frequency / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = min(1.0, max(0.0, kept))
        return kept * frequency + (1 - kept) * frequency / self.factor


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotary embedding."""

    theta: float
    scaling: Llama3Scaling | None = None

    def frequencies(self, head_dim: int) -> tuple[float, ...]:
        """Radians per position for each of the ``head_dim / 2`` pairs."""
        plain = (self.theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2))
        return tuple(self.scaling(frequency) if self.scaling else frequency for frequency in plain)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `states` of shape [requests, tokens, heads, head_dim].

    `cos` and `sin` of the angles are [requests, tokens, 1, head_dim / 2].
    """
    first, second = states.chunk(2, dim=-1)
    turned = states.new_empty(states.shape)
    half = first.shape[-1]
    turned[..., :half] = first * cos - second * sin
    turned[..., half:] = second * cos + first * sin
    return turned
