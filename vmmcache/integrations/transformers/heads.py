"""In which order tokens and heads stand in memory. Pure arithmetic.

*Tokens* outermost, ``[tokens, batch, heads, head_dim]``: a token's states stand together, and keys are one run that
grows, as values are. *Heads* outermost, ``[batch, heads, tokens, head_dim]``: each head of each sequence is a run of
its own, and a kernel that goes through one head at a time reads it from end to end.

The order is the user's to choose (`Settings.layout`), and tokens where nothing is said: the storage of a view is then
exactly what is committed (I6), and whoever saves or copies it as a whole gets what is there. That of a view over heads
goes over addresses that have no memory. With ``"auto"`` it is heads where all of this is so:

1. The states are on the CPU. Its attention kernels go through one head at a time; over strides they took three times as
   long at 32k tokens. Those of GPUs take a head's numbers of one token as a unit, which has 128 bytes or more in either
   order. And the system gives a CPU the pages of a granule when they are touched: a granule that is used in part costs
   addresses and a place in the accounts, where on a GPU it costs memory.
2. A granule is at most an eighth of what a head needs: its share of all tokens that there are addresses for, or of a
   window. Each run has one that is used in part, and at full length that may be no more than what growing adds anyway.
3. A layer has at most 32 runs. Each costs the driver's calls, a descriptor where allocations have one, and a granule
   that counts as used from its first byte on: 64 MiB for a layer of granules of 2 MiB, before it has more than a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

__all__ = ["LAYOUTS", "by_head"]

LAYOUTS: Final = ("auto", "tokens", "heads")
SHARE: Final = 8
MOST_RUNS: Final = 32


def by_head(
    layout: str, rows: Sequence[tuple[tuple[int, ...], torch.dtype]], needed: int, granule: int, device_type: str
) -> bool:
    """Whether heads are outermost.

    Parameters
    ----------
    layout : str
        One of `LAYOUTS`.
    rows : sequence of tuple
        For each stream the shape of what one token has, batch first and elements last, and its dtype.
    needed : int
        Tokens that there may be at a time.
    granule : int
        Bytes.
    device_type : str
        Of the driver; ``"cpu"`` where states are the CPU's.
    """
    if layout != "auto":
        return layout == "heads"
    runs = sum(math.prod(shape[:-1]) for shape, _ in rows)
    narrowest = min(shape[-1] * dtype.itemsize for shape, dtype in rows)
    return device_type == "cpu" and runs <= MOST_RUNS and granule * SHARE <= needed * narrowest
