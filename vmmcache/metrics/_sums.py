"""Notes added up. Never changed once made: to add is to make another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple, Self

from vmmcache.metrics._histogram import Histogram

__all__ = ["Sums"]

_NONE: Final = Histogram()


class Sums(NamedTuple):
    """What was done, by one region or by many."""

    calls: Mapping[str, int] = {}
    """Calls of the driver that succeeded, by verb."""
    times: Mapping[str, Histogram] = {}
    """By operation."""
    errors: Mapping[str, int] = {}
    """Operations that failed."""
    last_error: tuple[float, str, str] | None = None
    """When (Unix time), in which operation, what."""
    generations: int = 0
    allocations: int = 0
    """Made, and not released."""
    mappings: int = 0

    def plus(self, calls: Iterable[str], operations: Sequence[str], durations: Sequence[int], generations: int) -> Self:
        """With so much more; `durations` are of `operations`, in nanoseconds less one."""
        made = Counter(calls)
        times = dict(self.times)
        for name in dict.fromkeys(operations):
            more = list(compress(durations, map(name.__eq__, operations)))
            times[name] = times.get(name, _NONE).plus(more)
        return self._replace(
            calls=_added(self.calls, made),
            times=times,
            generations=self.generations + generations,
            allocations=self.allocations + made["create"] + made["import_handle"] - made["release"],
            mappings=self.mappings + made["map"] - made["unmap"],
        )

    def merged(self, other: Sums) -> Self:
        """Both together; of the last errors the later one."""
        times = dict(self.times)
        for name, histogram in other.times.items():
            times[name] = times.get(name, _NONE).merged(histogram)
        errors = [error for error in (self.last_error, other.last_error) if error is not None]
        return self._replace(
            calls=_added(self.calls, other.calls),
            times=times,
            errors=_added(self.errors, other.errors),
            last_error=max(errors, default=None),
            generations=self.generations + other.generations,
            allocations=self.allocations + other.allocations,
            mappings=self.mappings + other.mappings,
        )

    def with_error(self, when: float, operation: str, what: str) -> Self:
        """With one more operation that failed."""
        return self._replace(errors=_added(self.errors, {operation: 1}), last_error=(when, operation, what))

    def forgotten(self, generations: int) -> Sums:
        """What there is, without what was done; counting from `generations` on."""
        return Sums(generations=-generations, allocations=self.allocations, mappings=self.mappings)


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    sums = dict(one)
    for name, number in other.items():
        sums[name] = sums.get(name, 0) + number
    return sums
