"""What slots ask of the memory behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["SlotMover"]


class SlotMover(Protocol):
    """Moves the contents of slots, in all pools of a group at once. A backing of the cache is one."""

    def move_slots(self, group: int, pairs: Sequence[tuple[int, int]]) -> object:
        """Copy for each pair (source, target) what the source holds. Sources keep their contents where it fails."""

    def read_slots(self, group: int, slots: Sequence[int]) -> Any:
        """A copy, outside the device, of what `slots` hold."""

    def write_slots(self, group: int, slots: Sequence[int], copy: Any) -> object:
        """Put back what `read_slots` has read; as many slots, in the same order."""
