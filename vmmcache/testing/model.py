"""What a tensor is for whoever uses it, said in the dumbest way: numbers of bytes, and what was written where.

Nothing here is shared with the package, not even the rounding to granules: a mistake of the package that its oracle
makes too would never be found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["Model"]


class Model:
    """A tensor that has no memory and remembers every byte that was written.

    Attributes
    ----------
    sizes : tuple of int
        Capacity of each segment in bytes.
    committed : list of int
        Bytes of each segment that are there, or will be again after sleep.
    state : str
        ``"reserved"``, ``"committed"``, ``"asleep"`` or ``"closed"``.
    asleep : list of set of int
        Granules of each allocation that waking up will bring back.
    """

    def __init__(self, sizes: Sequence[int], granule: int) -> None:
        self.sizes: Final = tuple(sizes)
        self.starts: Final = tuple(sum(sizes[:index]) for index in range(len(sizes)))
        self.granule: Final = granule
        self.committed = [0] * len(sizes)
        self.state = "reserved"
        self.asleep: list[set[int]] = []
        self._backup = False
        self._written: list[dict[int, int]] = [{} for _ in sizes]
        self._probes: list[set[int]] = [set() for _ in sizes]
        for index, size in enumerate(sizes):
            self._watch(index, 0)
            self._watch(index, size)
            for border in range(0, sum(sizes), granule):
                self._watch(index, border - self.starts[index])

    @property
    def visible(self) -> tuple[int, ...]:
        """Bytes of each segment that can be seen now."""
        return tuple(self.committed) if self.state == "committed" else (0,) * len(self.sizes)

    def places(self, index: int) -> list[int]:
        """Positions of a segment to look at: borders of every kind, and what was written. Not all are visible."""
        return sorted(self._probes[index])

    def expected(self, index: int) -> Iterator[tuple[int, int]]:
        """Positions of a segment that are visible, with the byte that has to be there: what was written, or zero."""
        written = self._written[index]
        for position in self.places(index):
            if position < self.visible[index]:
                yield position, written.get(position, 0)

    def write(self, index: int, position: int, value: int) -> None:
        """A byte was written."""
        assert position < self.visible[index]
        self._written[index][position] = value
        self._watch(index, position)

    def resize(self, committed: Sequence[int]) -> None:
        """Segments have other sizes now: what was cut off is forgotten, what is new is zero."""
        for index, nbytes in enumerate(committed):
            kept = self._written[index].items()
            self._written[index] = {position: value for position, value in kept if position < nbytes}
            self._watch(index, nbytes)
        self.committed = list(committed)

    def forget(self, index: int) -> None:
        """The contents of a segment are gone: it is zero."""
        self._written[index].clear()

    def sleep(self, mapped: Sequence[set[int]], *, backup: bool) -> None:
        """All memory went back. Of each allocation (its granules) that will come back which somebody sees some of."""
        shown = set().union(*(self.granules(index, 0, nbytes) for index, nbytes in enumerate(self.visible)))
        parts = [granules & shown for granules in mapped]
        self.asleep = [set(range(min(part), max(part) + 1)) for part in parts if part]
        self._backup = backup
        self.state = "asleep"

    def wake(self) -> None:
        """It is back: as it was if there was a backup, else zero."""
        self.state = "committed"
        if not self._backup:
            for written in self._written:
                written.clear()

    def _watch(self, index: int, border: int) -> None:
        near = (border - 2, border - 1, border, border + 1)
        self._probes[index].update(position for position in near if 0 <= position < self.sizes[index])

    # Granules -------------------------------------------------------------------------------------------------------

    def granules(self, index: int, start: int, stop: int) -> set[int]:
        """Numbers of the granules that bytes of a segment lie in."""
        if start >= stop:
            return set()
        first = (self.starts[index] + start) // self.granule
        last = (self.starts[index] + stop - 1) // self.granule
        return set(range(first, last + 1))

    def needed(self, committed: Sequence[int]) -> list[set[int]]:
        """What each allocation covers after defragmenting: granules of a segment, or of neighbours that share one."""
        runs: list[set[int]] = []
        for index, nbytes in enumerate(committed):
            if granules := self.granules(index, 0, nbytes):
                if runs and runs[-1] & granules:
                    runs[-1] |= granules
                else:
                    runs.append(granules)
        return runs
