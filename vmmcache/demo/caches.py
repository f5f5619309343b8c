"""The two caches that the demo compares: one allocated at full size, and one that grows.

Both hold one tensor for each layer, laid out as `vmmcache.demo.paged` wants it; the growing one has one segment for
each layer, and they grow in lockstep.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from vmmcache import ExtensibleTensor, VmmDriver

__all__ = ["BlockLayout", "FullCache", "GrowingCache", "Growth"]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """What a block is, and how many there can be."""

    layers: int
    capacity: int
    """Blocks of each layer at full size."""
    block_tokens: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer: keys and values."""
        return 2 * self.block_tokens * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def full_bytes(self) -> int:
        """Bytes of all layers at full size."""
        return self.layers * self.capacity * self.block_bytes

    def shape(self, blocks: int) -> tuple[int, int, int, int, int]:
        """Shape of one layer's tensor of so many blocks."""
        return blocks, 2, self.block_tokens, self.kv_heads, self.head_dim


@dataclass(frozen=True, slots=True)
class Growth:
    """One growth of every layer by one block. All numbers are those afterwards."""

    step: int
    """Decode step during which it happened."""
    blocks: int
    committed_bytes: int
    physical_bytes: int
    physical: bool
    """Whether memory was mapped for it; otherwise the block lay in memory that rounding had mapped before."""


class FullCache:
    """Plain tensors at full size from the start: what the growing cache is measured against."""

    def __init__(self, layout: BlockLayout, device: str) -> None:
        shape = layout.shape(layout.capacity)
        self.layers: Final = [torch.zeros(shape, dtype=layout.dtype, device=device) for _ in range(layout.layers)]


class GrowingCache:
    """An `ExtensibleTensor` with one segment for each layer, that gets one more block in every layer when it must.

    Addresses are checked at every growth: `address_checks` counts how often, `moved` says whether one ever changed
    (I1).
    """

    def __init__(self, layout: BlockLayout, driver: VmmDriver) -> None:
        self.layout: Final = layout
        segment = layout.capacity * layout.block_bytes
        self.tensor: Final = ExtensibleTensor(
            segment * layout.layers, device=driver, segments=[segment] * layout.layers
        )
        self.layers: list[Tensor] = []
        self.blocks = 0
        self.growths: list[Growth] = []
        self.growth_seconds = 0.0
        self.addresses: tuple[int, ...] = ()
        self.address_checks = 0
        self.moved = False

    def grow(self, step: int) -> None:
        """Commit one more block in every layer."""
        started = time.perf_counter()
        before = self.tensor.physical_bytes
        self.commit(self.blocks + 1)
        after = self.tensor.physical_bytes
        committed = self.tensor.committed_bytes
        self.growths.append(Growth(step, self.blocks, committed, after, physical=after > before))
        self.growth_seconds += time.perf_counter() - started

    def commit(self, blocks: int) -> None:
        """Commit exactly so many blocks in every layer, and make the views over them."""
        self.tensor.commit(blocks * self.layout.block_bytes)
        self.blocks = blocks
        self.view()

    def view(self) -> None:
        """Make every layer's view over what is committed, and see that none has moved."""
        shape = self.layout.shape(self.blocks)
        self.layers = [self.tensor.segment_view(layer, self.layout.dtype, shape) for layer in range(self.layout.layers)]
        addresses = (self.tensor.base_address, *(layer.data_ptr() for layer in self.layers))
        self.addresses = self.addresses or addresses
        self.moved |= addresses != self.addresses
        self.address_checks += 1

    def is_zero(self) -> bool:
        """Say whether every committed byte is zero."""
        return not any(bool(self.tensor.segment_view(layer).any()) for layer in range(self.layout.layers))

    def close(self) -> None:
        """Give everything back. The views go first: a tensor does not close under them."""
        self.layers = []
        self.tensor.close()
