"""How long things take: counts in buckets whose bounds double."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import add
from typing import Final, NamedTuple, Self

__all__ = ["BOUNDS_S", "Histogram"]

_FIRST, _LAST = 10, 35
BOUNDS_S: Final[tuple[float, ...]] = tuple((1 << power) / 1e9 for power in range(_FIRST, _LAST + 1))
"""Upper bounds of the buckets in seconds: powers of two of nanoseconds, from 1.024 us to 34.4 s. One more bucket takes
what is longer."""


class Histogram(NamedTuple):
    """Durations of one kind."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    nanoseconds: int = 0

    def plus(self, durations: Sequence[int]) -> Self:
        """With more durations, in nanoseconds less one: so a bound belongs to the bucket that it is the bound of."""
        counts = list(self.counts)
        for power, number in Counter(map(int.bit_length, durations)).items():
            counts[min(max(power, _FIRST), _LAST + 1) - _FIRST] += number
        return self._replace(counts=tuple(counts), nanoseconds=self.nanoseconds + sum(durations) + len(durations))

    def merged(self, other: Histogram) -> Self:
        """Both together."""
        return self._replace(
            counts=tuple(map(add, self.counts, other.counts)), nanoseconds=self.nanoseconds + other.nanoseconds
        )
