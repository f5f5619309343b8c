"""Where blocks lie that only pass: written by this very step, and stale at its end."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning.limits import as_size

__all__ = ["Scratch"]


class Scratch(NamedTuple):
    """Passing blocks of one request in one life cycle, and the slots that they share.

    Layers run one after another, so while one runs it has the scratch slots for itself, whole: where a slot holds b
    buffers of a pool, of which m are one layer's, n blocks of that layer fill the first ``n * m`` buffers of ``ceil(n *
    m / b)`` slots. What a layer leaves there is gone when the next one runs.
    """

    start: int
    """First block that passes."""
    stop: int
    """The block behind the last."""
    slots: array[int]
    """Shared slots, in order."""

    def place(self, block: int, buffer: int, of_layer: int, of_slot: int) -> tuple[int, int]:
        """Where one buffer of a block lies while its layer runs.

        Parameters
        ----------
        block : int
            Block of the request, ``start <= block < stop``.
        buffer : int
            Which of the layer's buffers of this pool, from 0.
        of_layer, of_slot : int
            Buffers that the layer, and all layers of the life cycle, have in this pool.

        Returns
        -------
        slot, place : int
            The slot, and which of its `of_slot` buffers.
        """
        block = as_size("block", block, minimum=self.start, maximum=self.stop - 1, unit="blocks")
        if not 0 <= buffer < of_layer <= of_slot:
            raise ConfigError("buffer", buffer, f"must be one of a layer's {of_layer}, and these of a slot's {of_slot}")
        slot, place = divmod((block - self.start) * of_layer + buffer, of_slot)
        return self.slots[slot], place
