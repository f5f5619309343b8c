"""How bytes divide into segments, which granules they need, and what must be rebuilt together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from vmmcache.errors import ConfigError
from vmmcache.memory.ranges import Range, overlapping
from vmmcache.memory.segments import Segments, Unit

G = 16
"""A granule that keeps the numbers readable; the arithmetic takes any."""


def extents(*old: Range) -> Callable[[Range], Sequence[Range]]:
    """Old allocations, as `Segments.units` asks for them."""
    return lambda run: list(overlapping(old, *run))


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_a_count_makes_equal_segments() -> None:
    segments = Segments(60, 3, G)
    assert (segments.sizes, segments.offsets, len(segments)) == ((20, 20, 20), (0, 20, 40), 3)


def test_sizes_make_unequal_segments() -> None:
    segments = Segments(60, [10, 33, 17], G)
    assert (segments.sizes, segments.offsets) == ((10, 33, 17), (0, 10, 43))


@pytest.mark.parametrize(
    ("capacity", "segments", "complaint"),
    [
        (0, 1, "capacity=0: must be at least 1"),
        (-1, 1, "capacity=-1: must be at least 1"),
        (1.0, 1, "capacity=1.0: must be a whole number"),
        (float("nan"), 1, "capacity=nan: must be a whole number"),
        (60, 0, "segments=0: must be at least 1"),
        (60, -2, "segments=-2: must be at least 1"),
        (60, 2.0, "segments=2.0: must be a whole number"),
        (60, 7, "capacity=60: does not divide into 7 equal segments"),
        (3, 4, "capacity=3: does not divide into 4 equal segments"),
        (60, [], "sizes sum to 0, not to the capacity 60"),
        (60, [20, 39], "sizes sum to 59, not to the capacity 60"),
        (60, [60, 0], r"segments\[1\]=0: must be at least 1"),
        (60, [61, -1], r"segments\[1\]=-1: must be at least 1"),
        (60, [30.0, 30], r"segments\[0\]=30.0: must be a whole number"),
        (60, "60", "segments='60': must be a whole number"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(capacity: int, segments: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Segments(capacity, segments, G)


# Targets --------------------------------------------------------------------------------------------------------------


def test_one_number_is_meant_for_every_segment() -> None:
    assert Segments(60, 3, G).targets(5) == (5, 5, 5)
    assert Segments(60, 3, G).targets(0) == (0, 0, 0)
    assert Segments(60, 3, G).targets(np.int32(20)) == (20, 20, 20)


@pytest.mark.parametrize("numbers", [[1, 33, 0], (1, 33, 0), range(1, 4)], ids=repr)
def test_a_sequence_has_a_number_for_each_segment(numbers: Sequence[int]) -> None:
    assert Segments(60, [10, 33, 17], G).targets(numbers) == tuple(numbers)


@pytest.mark.parametrize(
    ("nbytes", "complaint"),
    [
        (11, "nbytes=11: must be at most 10"),
        (-1, "nbytes=-1: must be at least 0"),
        (1.0, "nbytes=1.0: must be a whole number"),
        (float("nan"), "nbytes=nan: must be a whole number"),
        (True, "nbytes=True: must be a whole number"),
        (None, "nbytes=None: must be a whole number"),
        ("5", "nbytes='5': must be a whole number"),
        ([1, 2], "2 sizes for 3 segments"),
        ([1, 2, 3, 4], "4 sizes for 3 segments"),
        ([1, 34, 3], r"nbytes\[1\]=34: must be at most 33"),
        ([1, 2, -3], r"nbytes\[2\]=-3: must be at least 0"),
        ([1, float("nan"), 3], r"nbytes\[1\]=nan: must be a whole number"),
        ({1: 1, 2: 2, 3: 3}, "must be a whole number"),
    ],
)
def test_targets_that_do_not_fit_are_refused_by_name(nbytes: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Segments(60, [10, 33, 17], G).targets(nbytes)


@pytest.mark.parametrize("index", [-1, 3, 1.0, None, "0", True], ids=repr)
def test_an_index_is_one_of_a_segment(index: object) -> None:
    with pytest.raises(ConfigError, match="segment="):
        Segments(60, 3, G).index(index)


# Granules -------------------------------------------------------------------------------------------------------------


def test_a_segment_needs_whole_granules_from_the_one_in_which_it_begins() -> None:
    segments = Segments(60, [20, 40], G)
    assert segments.span(0, 1) == (0, 16)
    assert segments.span(0, 16) == (0, 16)
    assert segments.span(0, 17) == (0, 32)
    assert segments.span(1, 1) == (16, 32)
    assert segments.span(1, 12) == (16, 32)
    assert segments.span(1, 13) == (16, 48)


def test_segments_with_nothing_committed_need_no_granule() -> None:
    assert Segments(60, 3, G).spans((5, 0, 5)) == [(0, 16), (32, 48)]


def test_between_gives_the_bytes_of_growth_only() -> None:
    segments = Segments(60, 3, G)
    assert segments.between((5, 9, 0), (7, 3, 4)) == [(5, 7), (40, 44)]
    assert segments.between(None, (7, 0, 4)) == [(0, 7), (40, 44)]
    assert segments.between(None, (7, 3, 4), [1]) == [(20, 23)]


# Units ----------------------------------------------------------------------------------------------------------------


def test_each_aligned_segment_is_rebuilt_by_itself() -> None:
    units = list(Segments(64, 2, G).units((20, 5), extents((0, 16), (16, 32), (32, 64))))
    assert units == [
        Unit(runs=((0, 32),), indices=(0,), exact=False),
        Unit(runs=((32, 48),), indices=(1,), exact=False),
    ]


def test_a_segment_that_has_its_one_allocation_is_exact() -> None:
    units = list(Segments(64, 2, G).units((20, 32), extents((0, 32), (32, 48), (48, 64))))
    assert [unit.exact for unit in units] == [True, False]


def test_segments_that_share_a_granule_get_one_allocation_together() -> None:
    units = list(Segments(40, 2, G).units((20, 20), extents()))
    assert units == [Unit(runs=((0, 48),), indices=(0, 1), exact=False)]


def test_neighbours_that_do_not_reach_each_other_stay_apart() -> None:
    units = list(Segments(40, 2, G).units((16, 20), extents()))
    assert [unit.runs for unit in units] == [((0, 16),), ((16, 48),)]


def test_segments_that_one_old_allocation_spans_are_rebuilt_together() -> None:
    units = list(Segments(96, 3, G).units((5, 5, 5), extents((0, 48), (64, 80))))
    assert units == [
        Unit(runs=((0, 16), (32, 48)), indices=(0, 1), exact=False),
        Unit(runs=((64, 80),), indices=(2,), exact=True),
    ]


def test_segments_with_nothing_committed_are_in_no_unit() -> None:
    assert [unit.indices for unit in Segments(96, 3, G).units((0, 5, 0), extents())] == [(1,)]
    assert list(Segments(96, 3, G).units((0, 0, 0), extents())) == []
