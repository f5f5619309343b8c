"""Sequences of a batch that change their places: the only time that states which are there are copied."""

from __future__ import annotations

import torch

from vmmcache.integrations.transformers.rows import Rows

__all__ = ["permute", "selection"]


def permute(rows: Rows, first: int, stop: int, order: torch.Tensor) -> None:
    """Put sequence ``order[i]`` in the place of sequence i, in place, for rows from `first` to `stop`.

    What stays where it is is not touched; the others are held twice a few MiB at a time.
    """
    order = order.to("cpu", torch.int64)
    places = torch.nonzero(order != torch.arange(len(order))).flatten()
    if not len(places):
        return
    device = rows.tensor.driver.torch_device
    targets, sources = places.to(device), order[places].to(device)
    for stream, low, high in rows.pieces(first, stop):
        piece = rows.view(stream, low, high)
        piece.index_copy_(0, targets, piece.index_select(0, sources))


def selection(rows: Rows, first: int, stop: int, indices: torch.Tensor) -> Rows:
    """New rows that have the sequences which `indices` selects: numbers of sequences, or a mask of them.

    The old ones are as they were, and stay until the last who looks at them is gone.
    """
    batch = rows.layout.streams[0].shape[0]
    chosen = torch.arange(batch)[indices.cpu()]
    selected = rows.like([((len(chosen), *each.shape[1:]), each.dtype) for each in rows.layout.streams])
    if stop > first:
        chosen = chosen.to(rows.tensor.driver.torch_device)
        selected.reach(first, stop)
        selected.fill_from(rows, first, stop, lambda states: states.index_select(0, chosen))
    return selected
