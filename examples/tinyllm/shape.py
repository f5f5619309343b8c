"""What the model looks like, and what of it a KV cache keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from tinyllm.exact import DTYPE
from vmmcache.planning import Attention, Buffer, CacheLayout, Ssm

__all__ = ["KINDS", "Kind", "ModelShape"]

Kind = Literal["full", "window", "state"]
KINDS: Final[tuple[Kind, ...]] = ("full", "window", "state")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A hybrid decoder: full attention, sliding-window attention, and state-space layers. Sizes are in elements."""

    layers: tuple[Kind, ...] = ("state", "window", "full", "window") * 2
    hidden: int = 64
    intermediate: int = 128
    vocabulary: int = 512
    heads: int = 8
    kv_heads: int = 4
    """Of attention; a state-space layer has as many heads."""
    head_dim: int = 32
    window: int = 32
    """Tokens that a query of a "window" layer sees, itself included."""
    taps: int = 4
    """Width of a state-space layer's convolution; it keeps the `taps` - 1 inputs before the present one."""
    block_tokens: int = 16

    def share(self, ranks: int) -> ModelShape:
        """What one of several tensor-parallel ranks holds: its part of the heads and of the MLP's columns."""
        for name, number in ("kv_heads", self.kv_heads), ("intermediate", self.intermediate):
            if number % ranks:
                raise ValueError(f"{ranks} ranks do not divide {name}, which is {number}")
        return replace(
            self,
            heads=self.heads // ranks,
            kv_heads=self.kv_heads // ranks,
            intermediate=self.intermediate // ranks,
        )

    def name(self, layer: int) -> str:
        """The layer's name, in the layout and in the manager's views."""
        return f"{layer}.{self.layers[layer]}"

    def layout(self) -> CacheLayout:
        """What the layers keep: keys and values of each block of tokens, or one state for each request."""
        width = self.kv_heads * self.head_dim * DTYPE.itemsize
        keys_values = [Buffer(role, self.block_tokens * width) for role in ("key", "value")]
        states = [Buffer("state", self.head_dim * width), Buffer("inputs", (self.taps - 1) * width)]

        def entry(layer: int, kind: Kind) -> Attention | Ssm:
            if kind == "state":
                return Ssm(states, name=self.name(layer))
            return Attention(keys_values, window=self.window if kind == "window" else None, name=self.name(layer))

        return CacheLayout(self.block_tokens, [entry(layer, kind) for layer, kind in enumerate(self.layers)])

    def cycle(self, layout: CacheLayout, kind: Kind) -> int:
        """The number of the life cycle in which a kind of layer keeps its blocks."""
        name = self.name(self.layers.index(kind))
        place = next(place for place, layer in enumerate(layout.layers) if layer.name == name)
        return next(number for number, cycle in enumerate(layout.life_cycles) if place in cycle.layers)
