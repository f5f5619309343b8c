"""Moves of slots: done one after the other they are what pairs mean all at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmcache import ConfigError
from vmmcache.cache.moves import Move, in_order, runs

SLOTS = 12


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Distinct targets, any sources; runs of neighbours come up."""
    targets = draw(st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS))
    shift = draw(st.integers(-SLOTS, SLOTS))
    any_slot = st.integers(0, SLOTS - 1)
    return [
        (target + shift if draw(st.booleans()) and 0 <= target + shift < SLOTS else draw(any_slot), target)
        for target in targets
    ]


def goes_round(pairs_: list[tuple[int, int]]) -> bool:
    source_of = {target: source for source, target in pairs_ if source != target}
    for start in source_of:
        slot = start
        for _ in range(len(source_of)):
            slot = source_of.get(slot, -1)
            if slot == start:
                return True
    return False


@given(pairs())
def test_one_after_the_other_is_all_at_once(moved: list[tuple[int, int]]) -> None:
    before = [f"content of {slot}" for slot in range(SLOTS)]
    if goes_round(moved):
        with pytest.raises(ConfigError, match="in a circle"):
            in_order(moved, SLOTS)
        return
    expected = list(before)
    for source, target in moved:
        expected[target] = before[source]
    after = list(before)
    for source, target, length in in_order(moved, SLOTS):
        assert length <= abs(target - source), "a piece that overlaps itself"
        after[target : target + length] = after[source : source + length]
    assert after == expected


def test_neighbours_go_as_one_piece_as_long_as_it_does_not_overlap_itself() -> None:
    assert in_order([(slot + 5, slot) for slot in range(5)], 10) == [Move(5, 0, 5)]
    assert in_order([(slot + 3, slot) for slot in range(5)], 10) == [Move(3, 0, 3), Move(6, 3, 2)]
    assert in_order([(slot + 1, slot) for slot in range(3)], 10) == [Move(1, 0, 1), Move(2, 1, 1), Move(3, 2, 1)]
    assert in_order([(3, 3)], 10) == []
    assert in_order([], 0) == []


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ([(0, 1), (2, 1)], "slot 1 is the target of two pairs"),
        ([(0, 1), (1, 1)], "slot 1 is the target of two pairs"),
        ([(0, SLOTS)], r"pairs\[0\]\[1\]"),
        ([(0, 1), (-1, 2)], r"pairs\[1\]\[0\]"),
        ([(0, 1.0)], "whole number"),
        ([(0, 1), (1, 2), (2, 0)], "in a circle"),
    ],
)
def test_what_cannot_be_moved_is_refused(wrong: list[tuple[int, int]], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        in_order(wrong, SLOTS)


@given(st.lists(st.integers(0, 9)))
def test_runs_are_the_list_again_and_as_long_as_can_be(slots: list[int]) -> None:
    found = list(runs(slots))
    assert [first + step for _, first, count in found for step in range(count)] == slots
    assert [place for place, _, _ in found] == [sum(run[2] for run in found[:index]) for index in range(len(found))]
    assert all(slots[place] != slots[place - 1] + 1 for place, _, _ in found[1:])
