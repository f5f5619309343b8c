"""Arithmetic in which a sum has one value, whatever its order.

An engine computes one token in a batch of one or of thirty, in a prompt or after it, on one rank or on four, and adds
up in another order each time; with rounded sums the last bit differs, and sooner or later a token. Here every factor of
a sum lies on a grid of 2^-12, so a product lies on one of 2^-24, and float64 adds up to 2^20 products of up to 2^9 each
without rounding: whatever the order, the result is the same. In between, element by element, values return to the grid,
which is so much coarser than the last bit of an exponential that how a library rounds that does not matter either.

This is what a fixed-point or integer model does, and what lets two runs of this engine be compared bit by bit.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["DTYPE", "snap", "softmax"]

DTYPE: Final = torch.float64
_STEPS: Final = 1 << 12
_LIMIT: Final = float(1 << 9)


def snap(values: Tensor) -> Tensor:
    """Round to the nearest multiple of 2^-12, within +-2^9."""
    return torch.round(values * _STEPS).div_(_STEPS).clamp_(-_LIMIT, _LIMIT)


def softmax(scores: Tensor, values: Tensor) -> Tensor:
    """Mix `values` by the softmax of `scores`.

    The sums over positions are exact, hence the same with more masked positions beside the visible ones; the division
    comes last, element by element.

    Parameters
    ----------
    scores
        [..., queries, positions]; overwritten. Minus infinity where a query does not see a position.
    values
        [..., positions, width], on the grid.

    Returns
    -------
    Tensor
        [..., queries, width], on the grid.
    """
    weights = snap(scores.sub_(scores.amax(-1, keepdim=True)).exp_())
    return snap((weights @ values) / weights.sum(-1, keepdim=True))
