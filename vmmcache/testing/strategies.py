"""Hypothesis strategies: tensors to make, sizes to commit, calls to refuse, and whole sequences of operations.

Sizes are drawn around what matters: nothing, everything, the borders of granules, and one byte beside each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hypothesis import strategies as st

from vmmcache.driver import VmmDriver
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.testing.recording import RecordingDriver, Refusal, invalid_value, out_of_memory, unknown_code

__all__ = [
    "Commit",
    "Configuration",
    "FaultPlan",
    "Operation",
    "Sleep",
    "Wake",
    "configurations",
    "fault_plans",
    "operations",
    "sizes_to_commit",
]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to make a tensor of. Sizes are bytes."""

    segments: tuple[int, ...]
    chunk: int | None = None

    def tensor(self, device: str | VmmDriver) -> ExtensibleTensor:
        """Make it. Equal segments are asked for by their number, as most callers do."""
        equal = len(set(self.segments)) == 1
        segments = len(self.segments) if equal else self.segments
        return ExtensibleTensor(sum(self.segments), device, segments=segments, chunk=self.chunk)


def _near(borders: Sequence[int], most: int) -> st.SearchStrategy[int]:
    """Numbers from 0 to `most`: the borders, one beside each, and any."""
    near = sorted({value for border in borders for value in (border - 1, border, border + 1) if 0 <= value <= most})
    return st.sampled_from([0, most, *near]) | st.integers(0, most)


@lru_cache(64)
def configurations(granule: int, max_granules: int = 10, max_segments: int = 4) -> st.SearchStrategy[Configuration]:
    """Tensors of up to `max_granules` granules: one segment or several, equal or not, on granules or sharing them."""
    borders = [0, granule // 3, granule // 2]
    part = st.tuples(st.integers(0, max(1, max_granules // max_segments)), _near(borders, granule - 1))
    size = part.map(lambda drawn: max(1, drawn[0] * granule + drawn[1]))
    equal = st.tuples(size, st.integers(1, max_segments)).map(lambda drawn: (drawn[0],) * drawn[1])
    unequal = st.lists(size, min_size=1, max_size=max_segments).map(tuple)
    chunk = st.none() | st.sampled_from([granule, 2 * granule, 2 * granule + 5])
    return st.builds(Configuration, equal | unequal, chunk)


@lru_cache(256)
def sizes_to_commit(segments: tuple[int, ...], granule: int) -> st.SearchStrategy[tuple[int, ...]]:
    """A number of bytes for each segment: nothing, everything, and around every granule that the segment touches."""
    each = []
    start = 0
    for size in segments:
        each.append(_near([border - start for border in range(0, start + size + granule, granule)], size))
        start += size
    return st.tuples(*each)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which calls to refuse."""

    error: Refusal = invalid_value
    nth: tuple[int, ...] = ()
    """These, counted from the beginning of the operation; the later ones may well hit its undoing."""
    verb: str | None = None
    """Every call of this verb as well."""
    rate: float = 0.0
    """And of all calls so many at random, from `seed`."""
    seed: int = 0

    def arm(self, driver: RecordingDriver) -> None:
        """Refuse them from now, until `driver` is healed."""
        for nth in self.nth:
            driver.fail(nth, error=self.error)
        if self.verb is not None:
            driver.fail_seeded(1.0, 0, verb=self.verb, error=self.error)
        if self.rate:
            driver.fail_seeded(self.rate, self.seed, error=self.error)


@lru_cache(8)
def fault_plans(most_calls: int = 16) -> st.SearchStrategy[FaultPlan]:
    """None, one or several calls of one operation, all of one verb, or a share of all."""
    errors = st.sampled_from([invalid_value, unknown_code, out_of_memory])
    nth = st.lists(st.integers(1, most_calls), min_size=1, max_size=3).map(tuple)
    verbs = st.sampled_from(["create", "map", "grant", "unmap", "release", "free", "zero", "copy", "synchronise"])
    return (
        st.just(FaultPlan())
        | st.builds(FaultPlan, errors, nth)
        | st.builds(FaultPlan, errors, nth, verbs)
        | st.builds(FaultPlan, errors, rate=st.sampled_from([0.1, 0.3, 0.6]), seed=st.integers(0, 999))
    )


@dataclass(frozen=True, slots=True)
class Commit:
    """`ExtensibleTensor.commit`."""

    sizes: tuple[int, ...]
    defragment: bool = False
    keep: bool = False

    def apply(self, tensor: ExtensibleTensor) -> None:
        """Do it."""
        tensor.commit(self.sizes, defragment=self.defragment, keep=self.keep)


@dataclass(frozen=True, slots=True)
class Sleep:
    """`ExtensibleTensor.release_physical`."""

    backup: bool = False

    def apply(self, tensor: ExtensibleTensor) -> None:
        """Do it."""
        tensor.release_physical(backup=self.backup)


@dataclass(frozen=True, slots=True)
class Wake:
    """`ExtensibleTensor.restore`."""

    def apply(self, tensor: ExtensibleTensor) -> None:
        """Do it."""
        tensor.restore()


Operation = Commit | Sleep | Wake


@st.composite
def operations(draw: st.DrawFn, configuration: Configuration, granule: int, max_size: int = 12) -> list[Operation]:
    """Operations that a tensor of `configuration` allows, one after the other."""
    commits = st.builds(Commit, sizes_to_commit(configuration.segments, granule), st.booleans(), st.booleans())
    awake: st.SearchStrategy[Operation] = commits | commits | st.builds(Sleep, st.booleans())
    sequence: list[Operation] = []
    for _ in range(draw(st.integers(1, max_size))):
        asleep = bool(sequence) and isinstance(sequence[-1], Sleep)
        sequence.append(Wake() if asleep else draw(awake))
    return sequence
