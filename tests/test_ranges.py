"""Arithmetic of byte ranges, against sets of bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from vmmcache.memory.ranges import Range, inside, merged, overlapping, subtract

SIZE = 24


@st.composite
def disjoint(draw: st.DrawFn) -> list[Range]:
    """Ascending ranges that share no byte; some touch."""
    borders = draw(st.lists(st.integers(0, SIZE), unique=True).map(sorted))
    pairs = [pair for pair in itertools.pairwise(borders) if draw(st.booleans())]
    return [(start, stop) for start, stop in pairs]


single = st.tuples(st.integers(0, SIZE), st.integers(1, SIZE)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def as_bytes(ranges: list[Range]) -> list[int]:
    return [byte for start, stop in ranges for byte in range(start, stop)]


@given(disjoint(), single)
def test_overlapping_gives_whole_ranges_that_share_a_byte(ranges: list[Range], window: Range) -> None:
    found = list(overlapping(ranges, *window))
    assert found == [span for span in ranges if set(range(*span)) & set(range(*window))]


@given(disjoint(), single)
def test_inside_gives_the_shared_bytes_and_no_empty_range(ranges: list[Range], window: Range) -> None:
    parts = list(inside(ranges, *window))
    assert as_bytes(parts) == sorted(set(as_bytes(ranges)) & set(range(*window)))
    assert all(start < stop for start, stop in parts)


@given(disjoint(), disjoint())
def test_subtract_leaves_the_bytes_that_no_hole_has(ranges: list[Range], holes: list[Range]) -> None:
    rest = subtract(ranges, holes)
    assert as_bytes(rest) == sorted(set(as_bytes(ranges)) - set(as_bytes(holes)))
    assert all(start < stop for start, stop in rest)


@given(st.lists(single).map(sorted))
def test_merged_covers_the_same_bytes_without_sharing_any(ranges: list[Range]) -> None:
    result = merged(ranges)
    assert set(as_bytes(result)) == set(as_bytes(ranges))
    assert len(as_bytes(result)) == len(set(as_bytes(result)))


def test_ranges_that_only_touch_stay_apart() -> None:
    assert merged([(0, 4), (4, 8)]) == [(0, 4), (4, 8)]
    assert list(overlapping([(0, 4), (4, 8)], 4, 8)) == [(4, 8)]
