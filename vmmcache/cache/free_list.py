"""Slots of one pool group that nobody has, handed out and taken back as arrays.

A stack of slots that came back, and behind it the slots that were never handed out, of which only the first number is
kept: a group of two thousand million slots costs no more memory than the slots that were in use at once. What came back
last is handed out first, so slots in use stay low, and a cache that shrinks has little to move.

Everything is slices of arrays: no step of Python per slot.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection
from typing import Final, TypeAlias

__all__ = ["FreeList", "SlotArray"]

SlotArray: TypeAlias = "array[int]"
"""Numbers of slots, 32 bits each."""

CHUNK: Final = 1024
# 0, 1, 2, ... as one large number with a slot in every 32 bits, and a number that adds one to each of them: new slots
# come at the speed of large integers, eight times that of array("i", range(...)).
_ASCENDING: Final = int.from_bytes(array("i", range(CHUNK)).tobytes(), sys.byteorder)
_ONES: Final = int.from_bytes(array("i", [1] * CHUNK).tobytes(), sys.byteorder)


class FreeList:
    """The free slots of a group.

    Parameters
    ----------
    count : int
        Slots of the group: 0 .. count - 1.
    reserved : int, default 0
        First slots that are never handed out.
    """

    __slots__ = ("_next", "_returned", "count", "free", "reserved")

    def __init__(self, count: int, reserved: int = 0) -> None:
        self.count = count
        self.reserved: Final = reserved
        self._returned: SlotArray = array("i")
        self._next = reserved
        self.free = max(0, count - reserved)
        """How many there are."""

    @property
    def usable(self) -> int:
        """Slots that can be handed out in all."""
        return max(0, self.count - self.reserved)

    @property
    def high(self) -> int:
        """Below this number lie all slots that were ever handed out."""
        return self._next

    def take(self, number: int) -> SlotArray:
        """Hand out `number` slots; there have to be as many."""
        returned = self._returned
        left = len(returned) - number
        if left >= 0:
            slots = returned[left:]
            del returned[left:]
        else:
            slots = returned[:]
            del returned[:]
            slots.extend(_from(self._next, -left))
            self._next -= left
        self.free -= number
        return slots

    def give(self, slots: SlotArray) -> None:
        """Take slots back."""
        self._returned.extend(slots)
        self.free += len(slots)

    def below(self, count: int, number: int) -> list[int]:
        """`number` free slots below `count`, without handing them out; there have to be as many."""
        slots = [slot for slot in self._returned if slot < count][:number]
        return slots + list(range(self._next, self._next + number - len(slots)))

    def resize(self, count: int, taken: Collection[int] = ()) -> None:
        """Have `count` slots from now on, of which `taken` (as `below` gave them) are handed out.

        Where that is fewer than before, nobody may have slots beyond.
        """
        gone = set(taken)
        if gone or self._next > count:
            self._returned = array("i", [slot for slot in self._returned if slot < count and slot not in gone])
        self._next = min(max(self._next, 1 + max(gone, default=-1)), max(count, self.reserved))
        self.count = count
        self.free = len(self._returned) + max(0, count - self._next)

    def refill(self, taken: Collection[int]) -> None:
        """Have all slots that are not `taken`, whatever was handed out before."""
        self._next = min(max(self._next, 1 + max(taken, default=-1)), max(self.count, self.reserved))
        self._returned = array(
            "i", [slot for slot in range(self._next - 1, self.reserved - 1, -1) if slot not in taken]
        )
        self.free = len(self._returned) + max(0, self.count - self._next)


def _from(start: int, number: int) -> SlotArray:
    """`number` slots from `start` on."""
    if number < CHUNK // 32:
        return array("i", range(start, start + number))
    slots: SlotArray = array("i")
    for first in range(start, start + number, CHUNK):
        slots.frombytes((_ASCENDING + _ONES * first).to_bytes(slots.itemsize * CHUNK, sys.byteorder))
    del slots[number:]
    return slots
