"""Agreement over the ranks of a model-parallel group: one, integers, torch.distributed."""

from __future__ import annotations

__all__ = [
    "GroupNumbers",
    "Measurement",
    "OneProcess",
    "Ranks",
    "Settled",
    "TorchRanks",
    "measurement_of",
    "merge_measurements",
]

from vmmcache.cache.ranks._base import OneProcess, Ranks, Settled
from vmmcache.cache.ranks._torch import TorchRanks
from vmmcache.cache.ranks.merging import merge_measurements
from vmmcache.cache.ranks.numbers import GroupNumbers, Measurement, measurement_of
