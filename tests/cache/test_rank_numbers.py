"""What ranks measured, as integers, and what becomes of them (S10, I14): against a model that shares no code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmcache import merge_measurements
from vmmcache.cache.ranks import GroupNumbers, Measurement, OneProcess, measurement_of
from vmmcache.cache.ranks.numbers import LifeCycleKey, Mode
from vmmcache.errors import ConfigError, PlanError
from vmmcache.planning import Attention, Buffer, CacheLayout
from vmmcache.planning.limits import MAX_SLOTS

FULL: LifeCycleKey = ("attention", None, 0)
WINDOW: LifeCycleKey = ("attention", 512, 0)
SINKS: LifeCycleKey = ("attention", 512, 1)
STATES: LifeCycleKey = ("ssm", None, 0)
CYCLES = (FULL, WINDOW, SINKS, STATES, ("attention", 0, 0), ("attention", 4096, 2))

MODES: st.SearchStrategy[Mode] = st.sampled_from(("measured", "estimated"))
KEPT = st.booleans()
SLOTS = st.one_of(st.integers(0, 300), st.integers(0, MAX_SLOTS))
ALIGNMENTS = st.one_of(st.sampled_from((1, 2, 3, 32, 64, 96, 1024)), st.integers(1, 2000), st.integers(1, MAX_SLOTS))


def group(*cycles: LifeCycleKey, slots: int, capacity: int | None = None, alignment: int = 1) -> GroupNumbers:
    return GroupNumbers(cycles, slots, max(slots, capacity or 0), alignment)


def measured(*groups: GroupNumbers, capacities: Sequence[int] = ()) -> Measurement:
    return Measurement("measured", groups, tuple(capacities))


def merged(*measurements: Measurement) -> Measurement:
    return Measurement.from_ints(merge_measurements([each.to_ints() for each in measurements]))


@st.composite
def partitions(draw: st.DrawFn) -> list[list[LifeCycleKey]]:
    """Life cycles of a whole model, in groups."""
    cycles = draw(st.lists(st.sampled_from(CYCLES), unique=True, min_size=1))
    groups: list[list[LifeCycleKey]] = [[] for _ in cycles]
    for cycle in cycles:
        groups[draw(st.integers(0, len(cycles) - 1))].append(cycle)
    return [members for members in groups if members]


@st.composite
def models(draw: st.DrawFn, *, whole: bool = False, least: int = 1) -> list[Measurement]:
    """What the ranks of one model measured. Stages lack life cycles; `whole`: they lack whole groups, or none."""
    groups = draw(partitions())
    requests = draw(st.integers(0, 3))
    found = []
    for _ in range(draw(st.integers(least, 5))):
        mine = []
        for members in groups:
            kept = list(members)
            if not whole:
                kept = [cycle for cycle in members if draw(KEPT)]
            if draw(KEPT) and kept:
                slots = draw(SLOTS)
                order = draw(st.permutations(kept))
                mine.append(GroupNumbers(tuple(order), slots, draw(st.integers(slots, MAX_SLOTS)), draw(ALIGNMENTS)))
        capacities = tuple(draw(st.integers(0, 1 << 40)) for _ in range(requests))
        found.append(Measurement(draw(MODES), tuple(draw(st.permutations(mine))), capacities))
    return found


# As integers ----------------------------------------------------------------------------------------------------------


@given(models())
def test_a_measurement_survives_an_engine_s_channel(found: list[Measurement]) -> None:
    for measurement in found:
        ints = json.loads(json.dumps(measurement.to_ints()))
        assert all(type(value) is int and 0 <= value < 1 << 63 for value in ints)
        again = Measurement.from_ints(ints)
        assert again.to_ints() == ints
        assert (again.mode, again.capacities) == (measurement.mode, measurement.capacities)
        assert {frozenset(own.life_cycles): own[1:] for own in again.groups} == {
            frozenset(own.life_cycles): own[1:] for own in measurement.groups
        }


@given(models(), st.data())
def test_a_list_that_was_cut_or_changed_is_refused_or_is_another_sound_one(
    found: list[Measurement], data: st.DataObject
) -> None:
    ints = found[0].to_ints()
    for length in range(len(ints)):
        with pytest.raises(ConfigError):
            Measurement.from_ints(ints[:length])
    with pytest.raises(ConfigError, match="1 numbers more than it says"):
        Measurement.from_ints([*ints, 0])
    place = data.draw(st.integers(0, len(ints) - 1))
    ints[place] = data.draw(st.one_of(st.integers(-2, 9), st.integers()))
    try:
        sound = Measurement.from_ints(ints)
    except ConfigError:
        return
    assert len(sound.to_ints()) == len(ints)


@given(st.lists(st.one_of(st.integers(), st.floats(), st.booleans()), max_size=30))
def test_anything_else_is_refused(values: list[int]) -> None:
    try:
        Measurement.from_ints(values, "measurements[3]")
    except ConfigError as error:
        assert error.field.startswith("measurements[3]")


def test_another_version_is_named() -> None:
    ints = measured(group(FULL, slots=1)).to_ints()
    ints[0] += 1
    with pytest.raises(ConfigError, match=r"is of version 2, not 1: run the same vmmcache on every rank"):
        Measurement.from_ints(ints)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Measurement("guessed", ()), "mode"),  # type: ignore[arg-type]  # that is the point
        (lambda: measured(group(FULL, slots=-1)), "slots"),
        (lambda: measured(GroupNumbers((FULL,), 5, 4)), "capacity"),
        (lambda: measured(group(FULL, slots=MAX_SLOTS + 1)), "slots"),
        (lambda: measured(group(FULL, slots=1, alignment=0)), "alignment"),
        (lambda: measured(group(slots=1)), "life_cycles"),
        (lambda: measured(group(("linear", None, 0), slots=1)), "life_cycles"),
        (lambda: measured(group(("attention", -1, 0), slots=1)), "window"),
        (lambda: measured(group(("attention", 1, -1), slots=1)), "sink_blocks"),
        (lambda: measured(group(FULL, slots=1), group(FULL, slots=1)), "life_cycles"),
        (lambda: measured(group(FULL, slots=1), capacities=[-1]), "capacities"),
    ],
)
def test_what_is_no_measurement_is_refused_and_the_field_named(make: Callable[[], Measurement], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_numbers_of_a_layout_stand_at_its_own_groups() -> None:
    block = [Buffer("key", 1024)]
    layout = CacheLayout(
        16, [Attention(block, window=512, sink_tokens=4), Attention(block), Attention(block, window=64, count=2)]
    )
    found = measurement_of(layout, "measured", [10, 20], [30, 40], [1, 8], capacities=[99])
    assert found.groups == (
        GroupNumbers((("attention", 512, 1), ("attention", None, 0)), 10, 30, 1),
        GroupNumbers((("attention", 64, 0),), 20, 40, 8),
    )
    assert found.capacities == (99,)
    assert merged(found, found).seen_by(found).groups[0][:3] == (found.groups[0].life_cycles, 10, 30)


# Merged ---------------------------------------------------------------------------------------------------------------


def expected(found: Sequence[Measurement], cycle: LifeCycleKey) -> tuple[int, int, int] | None:
    """Slots, capacity and alignment of a life cycle, the long way round: grow its group until nothing joins it."""
    members = {cycle}
    while True:
        joined = [each for one in found for each in one.groups if members & set(each.life_cycles)]
        more = members.union(*(each.life_cycles for each in joined))
        if more == members:
            break
        members = more
    if not joined:
        return None
    step = lcm(*(each.alignment for each in joined))
    least = min(each.slots for each in joined)
    return least - least % step, min(each.capacity for each in joined), min(step, MAX_SLOTS + 1)


@given(models())
def test_ranks_get_the_smallest_aligned_count_of_those_who_have_a_say(found: list[Measurement]) -> None:
    result = merged(*found)
    assert result.mode == ("estimated" if any(one.mode == "estimated" for one in found) else "measured")
    for cycle in CYCLES:
        mine = [each[1:] for each in result.groups if cycle in each.life_cycles]
        assert mine == [numbers for numbers in [expected(found, cycle)] if numbers]
    for place, tokens in enumerate(result.capacities):
        assert tokens == min(one.capacities[place] for one in found)
    for one in found:
        seen = result.seen_by(one)
        assert [each.life_cycles for each in seen.groups] == [each.life_cycles for each in one.groups]
        for own, agreed in zip(one.groups, seen.groups, strict=True):
            assert agreed.slots <= own.slots
            assert agreed.slots % own.alignment == 0
            assert agreed.capacity <= own.capacity


@given(models(), st.randoms(use_true_random=False))
def test_the_order_of_ranks_does_not_matter_and_twice_is_once(found: list[Measurement], chance: object) -> None:
    result = merge_measurements([one.to_ints() for one in found])
    shuffled = [one.to_ints() for one in found]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # random.Random
    assert merge_measurements(shuffled) == result
    assert merge_measurements([result]) == result
    assert merge_measurements([*shuffled, result, result]) == result


@given(models(whole=True, least=2), st.data())
def test_node_by_node_gives_the_same_where_nodes_have_the_same_groups(
    found: list[Measurement], data: st.DataObject
) -> None:
    lists = [one.to_ints() for one in found]
    cut = data.draw(st.integers(1, len(lists) - 1))
    by_node = merge_measurements([merge_measurements(lists[:cut]), merge_measurements(lists[cut:])])
    assert by_node == merge_measurements(lists)


@given(models(least=3), st.data())
def test_node_by_node_gives_the_same_or_is_refused(found: list[Measurement], data: st.DataObject) -> None:
    lists = [one.to_ints() for one in found]
    cut = data.draw(st.integers(1, len(lists) - 1))
    whole = merge_measurements(lists)
    try:
        assert merge_measurements([merge_measurements(lists[:cut]), *lists[cut:]]) == whole
    except ConfigError as error:
        assert "are two pool groups here and one on other ranks" in str(error)


def test_a_stage_that_lacks_a_group_is_neutral() -> None:
    first = measured(group(FULL, slots=100, capacity=120, alignment=8))
    second = measured(group(WINDOW, slots=7))
    assert merged(first, second).groups == (
        GroupNumbers((FULL,), 96, 120, 8),
        GroupNumbers((WINDOW,), 7, 7, 1),
    )
    assert merged(first, second, measured()).groups == merged(first, second).groups


def test_a_stage_that_lacks_a_life_cycle_has_a_say_in_its_group() -> None:
    assert merged(measured(group(FULL, WINDOW, slots=100)), measured(group(WINDOW, slots=60))).groups == (
        GroupNumbers((FULL, WINDOW), 60, 60, 1),
    )


def test_counts_are_floored_to_what_every_stage_can_back() -> None:
    """The minimum of aligned counts need not be aligned on every rank, where strides differ."""
    ranks = [measured(group(FULL, slots=1024, alignment=32)), measured(group(FULL, slots=1000, alignment=40))]
    assert merged(*ranks).groups == (GroupNumbers((FULL,), 960, 1000, 160),)


def test_an_alignment_that_nothing_meets_leaves_no_slot_and_says_so() -> None:
    step = MAX_SLOTS - 1
    result = merged(
        measured(group(FULL, slots=step, alignment=step)), measured(group(FULL, slots=MAX_SLOTS, alignment=MAX_SLOTS))
    )
    assert result.groups == (GroupNumbers((FULL,), 0, step, MAX_SLOTS + 1),)
    with pytest.raises(PlanError, match=r"no slot is left on all ranks for full attention; .* no connector"):
        result.check_usable()


def test_a_rank_without_memory_leaves_no_slot_and_says_so() -> None:
    result = merged(measured(group(WINDOW, SINKS, slots=0)), measured(group(SINKS, slots=5)))
    with pytest.raises(PlanError, match=r"for window 512 \+ window 512 \(1 sink blocks\); .*shorten max_model_len"):
        result.check_usable()
    merged(measured(group(FULL, slots=1))).check_usable()


def test_stages_that_group_the_same_life_cycles_differently_are_refused() -> None:
    together, apart = measured(group(FULL, STATES, slots=5)), measured(group(FULL, slots=5), group(STATES, slots=5))
    for ranks, field in ([together, apart], "measurements[1]"), ([apart, together], "measurements[0]"):
        with pytest.raises(ConfigError, match=r"full attention and states.*two pool groups here") as caught:
            merged(*ranks)
        assert caught.value.field == field
    # Also where a third rank is what joins them.
    with pytest.raises(ConfigError, match="two pool groups here"):
        merged(
            measured(group(FULL, slots=5), group(SINKS, slots=5)),
            measured(group(FULL, WINDOW, slots=5)),
            measured(group(WINDOW, SINKS, slots=5)),
        )


def test_ranks_with_other_constraints_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[1, 2\].*give every rank the same constraints"):
        merged(measured(capacities=[5]), measured(capacities=[5, 6]))
    assert merged(measured(capacities=[5, 9]), measured(capacities=[8, 6])).capacities == (5, 6)


def test_no_rank_at_all_is_refused_and_an_unsound_one_named() -> None:
    with pytest.raises(ConfigError, match="one list for each rank"):
        merge_measurements([])
    with pytest.raises(ConfigError, match=r"measurements\[1\]"):
        merge_measurements([measured().to_ints(), [1, 1, 1]])


def test_what_was_agreed_on_by_others_is_refused() -> None:
    agreed = merged(measured(group(FULL, slots=1), group(SINKS, slots=1)))
    for own in measured(group(STATES, slots=1)), measured(group(FULL, SINKS, slots=1)):
        with pytest.raises(ConfigError, match="is no group of what was agreed on"):
            agreed.seen_by(own)


# One process ----------------------------------------------------------------------------------------------------------


def test_one_process_agrees_with_itself() -> None:
    ranks = OneProcess()
    assert (ranks.rank, ranks.size) == (0, 1)
    assert ranks.gather("any", b"bytes") == [b"bytes"]
    assert ranks.minimum("any", [3, -1]) == [3, -1]
    assert ranks.agree_reason("any", None) is None
    assert ranks.agree_reason("any", "no driver") == "no driver"
    own = measured(group(FULL, slots=100, alignment=32))
    assert Measurement.from_ints(ranks.settle("any", own.to_ints()).numbers).groups[0].slots == 96
    assert ranks.settle("any") == ((), {})
    assert ranks.settle("any", own.to_ints(), "no memory") == ((), {0: "no memory"})
    ranks.abort("any", "reason")
    ranks.close()
    for wrong in [1.5], [True], ["1"]:
        with pytest.raises(ConfigError):
            ranks.minimum("any", wrong)  # type: ignore[arg-type]  # that is the point
