"""What one layer of a model keeps, before it is split over ranks: heads, a latent, a recurrent state, or nothing."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from vmmcache.errors import ConfigError
from vmmcache.planning.element_types import ElementType
from vmmcache.planning.layers import Attention, Buffer, Ssm

__all__ = ["Heads", "Latent", "LayerShape", "Shared", "State", "StateArray", "Term"]


class Heads(NamedTuple):
    """Keys and values per head (multi-head, grouped-query, multi-query attention)."""

    heads: int
    key_width: int
    value_width: int
    window: int | None = None

    def layer(self, cache: ElementType, block_size: int, tensor_parallel: int, sink_tokens: int) -> Attention:
        """The layer of one tensor-parallel rank. Heads are split; fewer heads than ranks are repeated."""
        heads = self.heads // tensor_parallel
        if self.heads % tensor_parallel:
            if tensor_parallel % self.heads:
                problem = f"{self.heads} key-value heads are neither split nor repeated evenly over that many ranks"
                raise ConfigError("tp", tensor_parallel, problem)
            heads = 1
        buffers = []
        for role, width in (("key", self.key_width), ("value", self.value_width)):
            buffers.append(Buffer(role, cache.nbytes(heads * width) * block_size))
            if cache.scale_nbytes:
                buffers.append(Buffer(f"{role}_scale", cache.scale_bytes(heads, width) * block_size))
        return Attention(buffers, self.window, sink_tokens if self.window is not None else 0)


class Latent(NamedTuple):
    """One compressed vector per token (multi-head latent attention), which every rank keeps whole."""

    width: int
    window: int | None = None

    def layer(self, cache: ElementType, block_size: int, tensor_parallel: int, sink_tokens: int) -> Attention:
        """The layer of one rank."""
        buffers = [Buffer("latent", cache.nbytes(self.width) * block_size)]
        if cache.scale_nbytes:
            buffers.append(Buffer("latent_scale", cache.scale_bytes(1, self.width) * block_size))
        return Attention(buffers, self.window, sink_tokens if self.window is not None else 0)


class Term(NamedTuple):
    """A part of a state: `split` units over which ranks divide, of `width` elements each."""

    split: int
    width: int
    repeated: bool = False
    """Fewer units than ranks are repeated rather than refused."""


class StateArray(NamedTuple):
    """One array of a recurrent state."""

    role: str
    terms: tuple[Term, ...]
    recurrent: bool
    """Stored in the type of recurrent states, not in the model's own."""

    def elements(self, tensor_parallel: int) -> int:
        """Elements of one rank."""
        total = 0
        for term in self.terms:
            units = term.split // tensor_parallel
            if term.split % tensor_parallel:
                if not term.repeated or tensor_parallel % term.split:
                    problem = f"a state's {term.split} heads or channels are not split evenly over that many ranks"
                    raise ConfigError("tp", tensor_parallel, problem)
                units = 1
            total += units * term.width
        return total


class State(NamedTuple):
    """A recurrent state of fixed size (Mamba, Mamba 2, gated delta net)."""

    arrays: tuple[StateArray, ...]

    def layer(self, recurrent: ElementType, other: ElementType, tensor_parallel: int) -> Ssm:
        """The layer of one tensor-parallel rank."""
        return Ssm(
            [
                Buffer(array.role, (recurrent if array.recurrent else other).nbytes(array.elements(tensor_parallel)))
                for array in self.arrays
            ]
        )


class Shared(NamedTuple):
    """A layer that reads the cache of an earlier one and keeps nothing."""


LayerShape: TypeAlias = Heads | Latent | State | Shared
