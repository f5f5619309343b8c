"""What a rank does with the others: meet them, and add up with them."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from tinyllm.launch import Place

__all__ = ["RankLost", "combine", "join"]


class RankLost(RuntimeError):
    """A rank dropped out while others were computing with it."""


def join(place: Place, timeout_s: float) -> None:
    """Meet the other ranks in a process group of the engine's own; the manager's ranks make theirs beside it."""
    # Ranks of one machine talk over the loopback device; a host's name need not lead anywhere.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.store}",
        rank=place.rank,
        world_size=place.ranks,
        timeout=timedelta(seconds=timeout_s),
    )


def combine(partial: Tensor) -> Tensor:
    """Add up what every rank has computed of a layer's output.

    Raises
    ------
    RankLost
        A rank is gone, or late.
    """
    whole = partial.cpu()
    try:
        dist.all_reduce(whole)
    except RuntimeError as error:
        # What follows the first sentence is advice for people who debug gloo.
        raise RankLost(f"a rank dropped out while all were adding up a layer: {str(error).split('. ')[0]}") from error
    return whole.to(partial.device)
