"""Slots that nobody has: handed out once, whatever the order, and at no cost for those that nobody ever had."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmcache.cache.free_list import CHUNK, FreeList
from vmmcache.planning.limits import MAX_SLOTS


@given(
    st.integers(0, 300),
    st.integers(0, 1),
    st.lists(st.tuples(st.sampled_from(["take", "give", "resize"]), st.integers(0, 200)), max_size=30),
)
def test_every_slot_is_free_or_handed_out_and_never_both(
    count: int, reserved: int, steps: list[tuple[str, int]]
) -> None:
    free = FreeList(count, reserved)
    out: list[int] = []
    for step, number in steps:
        if step == "take" and number <= free.free:
            slots = free.take(number)
            assert len(slots) == number
            out += slots
        elif step == "give":
            free.give(array("i", out[:number]))
            del out[:number]
        elif step == "resize":
            count = max(number, max(out, default=-1) + 1)
            free.resize(count)
        assert len(set(out)) == len(out)
        assert all(reserved <= slot < count for slot in out)
        assert free.free == max(0, count - reserved) - len(out)
        assert (free.count, free.usable) == (count, max(0, count - reserved))
        assert free.high <= max(count, reserved)
    assert sorted([*out, *free.take(free.free)]) == list(range(reserved, count))


@pytest.mark.parametrize("number", [1, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize("start", [0, 1, 1000])
def test_slots_that_nobody_had_come_in_order(number: int, start: int) -> None:
    free = FreeList(10 * CHUNK)
    free.take(start)
    assert list(free.take(number)) == list(range(start, start + number))


def test_the_last_slots_of_the_largest_group() -> None:
    """Two thousand million slots take no memory until they are used, and the last number is one of 32 bits."""
    free = FreeList(MAX_SLOTS, 1)
    free._next = MAX_SLOTS - 100
    free.free = 100
    assert list(free.take(100)) == list(range(MAX_SLOTS - 100, MAX_SLOTS))


def test_what_came_back_last_goes_first() -> None:
    free = FreeList(100)
    slots = free.take(10)
    free.give(slots[2:4])
    free.give(slots[7:8])
    assert list(free.take(3)) == [2, 3, 7]
    assert list(free.take(1)) == [10]


@given(st.integers(0, 40), st.integers(0, 40), st.data())
def test_slots_below_a_new_count_are_free_and_then_gone(taken: int, count: int, data: st.DataObject) -> None:
    free = FreeList(40, 1)
    out = list(free.take(min(taken, free.free)))
    back = data.draw(st.lists(st.sampled_from(out), unique=True)) if out else []
    free.give(array("i", back))
    held = set(out) - set(back)
    below = [slot for slot in range(1, count) if slot not in held]
    moving = {slot for slot in held if slot >= count}
    wanted = min(len(moving), len(below))
    targets = free.below(count, wanted)
    assert len(set(targets)) == wanted
    assert set(targets) <= set(below)
    if wanted == len(moving):
        free.resize(count, targets)
        assert sorted(free.take(free.free)) == sorted(set(below) - set(targets))
