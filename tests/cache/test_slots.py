"""Slots of one layout, by hand: what each call gives, refuses, and leaves as it was (S7, S8, S13, S15)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cache.slot_support import LAYOUTS, layer
from tests.planning.model import Model
from tests.planning.support import REWINDS, layouts
from vmmcache import CacheRequest, ConfigError, PlanError, Prefix, RequestState, SlotsExhausted, StateError
from vmmcache.cache.requests import ALLOWED
from vmmcache.cache.scratch import Scratch
from vmmcache.cache.slots import Slots
from vmmcache.planning import Buffer, CacheLayout, Request, Ssm, plan
from vmmcache.planning.longest import longest_in

FULL = LAYOUTS["full"]
WINDOW = LAYOUTS["window"]


# Counts that agree --------------------------------------------------------------------------------------------------


@given(layouts(), st.integers(1, 40), st.integers(0, 60), REWINDS, st.data())
def test_fits_says_for_every_capacity_what_allocate_does(
    layout: CacheLayout, count: int, taken: int, rewind: int | None, data: st.DataObject
) -> None:
    slots = Slots(layout, [count] * len(layout.groups), scratch_rewind=rewind)
    if slots.fits(taken, taken // 2):
        slots.allocate(taken, taken // 2)
    for capacity in range(0, 50, 1 if layout.tokens_per_block < 3 else 3):
        history = data.draw(st.integers(0, capacity))
        fits = slots.fits(capacity, history)
        try:
            request = slots.allocate(capacity, history)
        except SlotsExhausted:
            assert not fits
        else:
            assert fits
            slots.free(request)


@given(layouts(), st.integers(0, 12), st.integers(1, 3), st.sampled_from([7, 60, 1 << 60]), REWINDS)
def test_longest_is_as_far_as_a_request_grows_token_by_token(
    layout: CacheLayout, count: int, batch: int, upper: int, rewind: int | None
) -> None:
    """Against a request that really grows until it is refused."""
    slots = Slots(layout, [count] * len(layout.groups), scratch_rewind=rewind)
    longest = slots.longest(batch, upper)
    try:
        others = [slots.allocate(1) for _ in range(batch - 1)]
        grown = slots.allocate(1)
    except SlotsExhausted:
        assert longest == 0
        return
    assert len(others) == batch - 1
    end = min(upper, 120)
    try:
        while grown.capacity < end:
            slots.grow(grown, grown.capacity + 1, grown.capacity)
    except SlotsExhausted:
        assert longest == grown.capacity
        assert longest % layout.tokens_per_block == 0
    else:
        assert longest >= end


@given(layouts(), st.integers(0, 12), st.integers(1, 9), st.sampled_from([7, 60, 1 << 60]), REWINDS)
def test_longest_is_as_far_as_every_step_fits(
    layout: CacheLayout, count: int, writes: int, upper: int, rewind: int | None
) -> None:
    """S7 with drafts: also where a step's blocks pass through scratch, which begins anew at each place in a block."""
    slots = Slots(layout, [count] * len(layout.groups), scratch_rewind=rewind)
    longest = slots.longest(upper=upper, draft=writes - 1)
    end = min(upper, 120)
    every = next((least - 1 for least in range(writes, end + 1) if not slots.fits(least, least - writes)), end)
    assert min(longest, end) == (every if every >= writes else 0)


def test_a_history_that_has_begun_a_block_keeps_it() -> None:
    """Five tokens of which none is computed pass two blocks through one slot; one later, the first is written on."""
    slots = Slots(CacheLayout(2, [layer(2, count=2)]), [2], scratch_rewind=0)
    assert slots.longest(draft=4) == 5
    assert slots.dummy(history=0, draft=4)[0].capacity == 5


def test_a_request_as_long_as_reported_fits_at_a_page_boundary() -> None:
    """S7: no token more than what the step writes, so the last page is enough."""
    slots = Slots(FULL, [10])
    assert slots.longest() == 40
    assert slots.dummy(history=39)[0].capacity == 40
    with pytest.raises(SlotsExhausted):
        slots.dummy(history=0)
    (request,) = slots.requests
    slots.free(request)
    (request,) = slots.dummy(history=30, tokens=1, draft=7, extra=2)
    assert (request.capacity, request.history_length) == (40, 30)
    with pytest.raises(SlotsExhausted):
        slots.grow(request, 41)


def test_longest_of_full_attention_is_that_of_the_planner() -> None:
    """With a window it may be less: the planner counts a request that has computed all of its tokens."""
    pools = plan(FULL, 10_000, 64)
    slots = Slots(FULL, [group.slots for group in pools.groups])
    assert slots.longest(3) == longest_in(pools, 3) == 4 * (pools.groups[0].slots - 2)


def test_longest_counts_others_and_what_suspended_requests_would_give() -> None:
    slots = Slots(FULL, [10])
    assert [slots.longest(batch) for batch in (1, 2, 10, 11)] == [40, 36, 4, 0]
    request = slots.allocate(20)
    assert slots.longest() == 20
    slots.suspend(request)
    assert slots.longest() == 40


def test_windows_alone_are_never_too_long() -> None:
    slots = Slots(WINDOW, [3])
    assert slots.longest(upper=10**12) == 10**12
    assert Slots(WINDOW, [2]).longest() == 8


def test_dummies_come_all_or_not_at_all() -> None:
    slots = Slots(FULL, [10])
    with pytest.raises(SlotsExhausted) as error:
        slots.dummy(history=8, tokens=1, count=4)
    assert (error.value.needed, error.value.free) == (12, 10)
    assert slots.requests == ()
    assert len(slots.dummy(history=8, tokens=1, count=3)) == 3
    assert slots.free_slots(0) == 1


def test_work_grows_neither_with_blocks_nor_with_slots() -> None:
    """Whatever the number of slots and blocks, so many steps of Python: nothing is gone through one by one."""

    def steps(slots: Slots, capacity: int) -> list[int]:
        def life() -> Iterator[None]:
            request = slots.allocate(capacity)
            yield
            slots.grow(request, 2 * capacity, capacity)
            yield
            slots.suspend(request)
            yield
            slots.resume(request)
            yield
            slots.free(request)
            yield

        return [opcodes(lambda step=step: next(step)) for step in [life()] for _ in range(5)]  # type: ignore[misc]

    layout = LAYOUTS["one group"]
    small, large = Slots(layout, [100]), Slots(layout, [1_000_000])
    # What was handed out before, so that the second time nothing is new.
    small.free(small.allocate(128))
    large.free(large.allocate(800_000))
    assert steps(large, 400_000) == steps(large, 32) == steps(small, 32)


def opcodes(work: Callable[[], object]) -> int:
    """How many steps of Python that takes, in this package."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "vmmcache/cache/" not in frame.f_code.co_filename:
            # The garbage collector's, say, which comes when it likes.
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


# Gate ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "passes"), [(0.7, 7), (Fraction(69, 100), 6), (0, 0), (1, 10), (5, 10)])
def test_the_gate_looks_before_and_is_strict(share: Any, passes: int) -> None:
    """F18: refused if and only if more than the share is in use, before the request takes anything: 7 of 10 is not."""
    slots = Slots(FULL, [10], max_util_for_resume=share)
    requests = [slots.allocate(4) for _ in range(10)]
    for request in requests:
        slots.suspend(request)
    resumed = 0
    while resumed < 10 and slots.resume(requests[resumed]):
        resumed += 1
    assert resumed == min(10, passes + 1)
    assert slots.utilisation(0) == Fraction(resumed, 10)


def test_states_alone_do_not_close_the_gate() -> None:
    slots = Slots(LAYOUTS["state"], [2, 40], max_util_for_resume=0.4)
    first, second = slots.allocate(8), slots.allocate(8)
    slots.suspend(second)
    assert slots.utilisation(0) == Fraction(1, 2)
    assert slots.resume(second)
    assert first.state is second.state is RequestState.ACTIVE


def test_suspended_requests_do_not_close_the_gate() -> None:
    slots = Slots(FULL, [10], max_util_for_resume=0.5)
    requests = [slots.allocate(4) for _ in range(10)]
    for request in requests[:7]:
        slots.suspend(request)
    assert slots.utilisation(0) == Fraction(3, 10)
    assert slots.evictable_slots(0) == 7
    assert slots.resume(requests[0])


def test_a_group_without_slots_has_no_utilisation() -> None:
    assert Slots(FULL, [0]).utilisation(0) == 0
    assert Slots(FULL, [1], null_block=True).usable == (0,)


# Eviction -----------------------------------------------------------------------------------------------------------


def test_the_least_recently_suspended_goes_first_and_whole() -> None:
    slots = Slots(FULL, [10])
    first, second, third = (slots.allocate(12) for _ in range(3))
    slots.suspend(second)
    slots.suspend(first)
    slots.suspend(third)
    assert slots.resume(second)
    slots.suspend(second)
    slots.allocate(8)
    assert [request.state.value for request in (first, second, third)] == ["evicted", "suspended", "suspended"]
    assert slots.free_slots(0) == 2
    assert list(first.blocks(0)) == [-1, -1, -1]
    assert first.lost
    assert not second.lost


def test_nobody_goes_who_has_nothing_to_give_where_slots_are_short() -> None:
    layout = LAYOUTS["state"]
    slots = Slots(layout, [3, 12])
    state_only = slots.allocate(0)
    long = slots.allocate(16)
    slots.suspend(state_only)
    slots.suspend(long)
    slots.allocate(12)
    assert [state_only.state, long.state] == [RequestState.SUSPENDED, RequestState.EVICTED]


def test_who_is_refused_evicts_nobody() -> None:
    slots = Slots(FULL, [10])
    waiting, running = slots.allocate(20), slots.allocate(8)
    slots.suspend(waiting)
    with pytest.raises(SlotsExhausted) as error:
        slots.allocate(36)
    assert (error.value.group, error.value.needed, error.value.free) == (0, 9, 8)
    assert "suspend or free" in str(error.value)
    assert isinstance(error.value, PlanError)
    with pytest.raises(SlotsExhausted):
        slots.grow(running, 44)
    assert waiting.state is RequestState.SUSPENDED
    assert (running.capacity, len(running.blocks(0))) == (8, 2)


def test_lost_lasts_until_the_next_step() -> None:
    slots = Slots(FULL, [4])
    request = slots.allocate(16, 15)
    slots.suspend(request)
    assert slots.evict_all() == 1
    assert slots.resume(request)
    assert request.lost
    slots.suspend(request)
    assert slots.resume(request)
    assert request.lost
    slots.grow(request, 16, 16)
    assert not request.lost


# Blocks -------------------------------------------------------------------------------------------------------------


def test_stale_blocks_go_before_new_ones_are_taken() -> None:
    slots = Slots(WINDOW, [3])
    request = slots.allocate(12, 8)
    before = request.blocks(0)
    slots.grow(request, 16, 12)
    after = request.blocks(0)
    assert list(before).count(-1) == 0
    assert list(after) == [-1, before[1], before[2], before[0]]
    with pytest.raises(SlotsExhausted):
        slots.grow(request, 20)
    assert request.blocks(0) == after


def test_what_one_life_cycle_gives_up_another_of_its_group_gets() -> None:
    slots = Slots(CacheLayout(4, [layer(None), layer(4)]), [6])
    request = slots.allocate(16, 12)
    assert slots.free_slots(0) == 0
    slots.grow(request, 20, 19)
    assert [list(request.blocks(cycle)).count(-1) for cycle in range(2)] == [0, 4]
    assert slots.free_slots(0) == 0


def test_block_tables_are_copies_that_torch_can_have_without_another() -> None:
    import torch

    slots = Slots(FULL, [10])
    request = slots.allocate(40)
    blocks = request.blocks(0)
    tensor = torch.frombuffer(blocks, dtype=torch.int32)
    assert tensor.tolist() == list(range(10))
    assert request.blocks(0, 3, 5) == array("i", [3, 4])
    assert request.blocks(0, 9) == array("i", [9])
    assert list(request.blocks(0, 11)) == []
    blocks[0] = 77
    assert int(tensor[0]) == 77
    assert request.blocks(0)[0] == 0


def test_the_null_block_is_nobodys() -> None:
    slots = Slots(FULL, [10], null_block=True)
    assert (slots.counts, slots.usable, slots.free_slots(0)) == ((10,), (9,), 9)
    assert slots.longest() == 36
    assert list(slots.allocate(36).blocks(0)) == list(range(1, 10))


def test_passing_blocks_share_slots_and_every_buffer_has_a_place() -> None:
    """Four layers with one buffer each: a slot holds four passing blocks of the layer that runs (F4)."""
    layout = LAYOUTS["four layers"]
    slots = Slots(layout, [40, 40], scratch_rewind=0)
    request = slots.allocate(20, 0)
    scratch = request.scratch(0)
    model = Model(layout, 0)
    own = model.own(next(iter(model.sizes)), Request(20), 0)
    assert (scratch.start, scratch.stop, len(scratch.slots)) == (0, 9, 3)
    assert list(request.blocks(0)).count(-1) == 9
    assert slots.free_slots(0) == 40 - own
    places = [scratch.place(block, 0, of_layer=1, of_slot=4) for block in range(9)]
    assert len(set(places)) == 9
    assert {slot for slot, _ in places} == set(scratch.slots)
    assert request.scratch(1) == Scratch(0, 0, array("i"))
    slots.grow(request, 22, 20)
    assert request.scratch(0).slots == array("i")


@pytest.mark.parametrize(("of_layer", "of_slot", "blocks"), [(2, 3, 4), (3, 7, 5), (1, 1, 3), (2, 64, 33)])
def test_passing_buffers_lie_in_as_many_slots_as_were_counted(of_layer: int, of_slot: int, blocks: int) -> None:
    slots = -(-blocks * of_layer // of_slot)
    scratch = Scratch(5, 5 + blocks, array("i", range(10, 10 + slots)))
    places = [scratch.place(b, i, of_layer, of_slot) for b in range(5, 5 + blocks) for i in range(of_layer)]
    assert len(set(places)) == blocks * of_layer
    assert {slot for slot, _ in places} == set(scratch.slots)
    for block, buffer in ((4, 0), (5 + blocks, 0), (5, of_layer), (5, -1)):
        with pytest.raises(ConfigError):
            scratch.place(block, buffer, of_layer, of_slot)


def test_a_step_must_not_take_back_more_than_was_said() -> None:
    slots = Slots(LAYOUTS["four layers"], [40, 40], scratch_rewind=2)
    request = slots.allocate(20, 0)
    with pytest.raises(ConfigError, match="scratch_rewind"):
        slots.grow(request, 20, 10)
    assert request.history_length == 0
    slots.grow(request, 24)
    slots.grow(request, 24, 22)


# Shared prompts -----------------------------------------------------------------------------------------------------


def test_a_prompt_is_there_once_from_the_first_member_to_the_last() -> None:
    slots = Slots(FULL, [10])
    prefix = slots.share(11)
    assert (prefix.tokens, prefix.members, slots.free_slots(0)) == (8, 0, 10)
    first = slots.allocate(12, prefix=prefix)
    second = slots.allocate(12, 8, prefix=prefix)
    assert (prefix.members, slots.free_slots(0)) == (2, 6)
    assert first.blocks(0)[:2] == second.blocks(0)[:2] == prefix.blocks(0)
    assert first.blocks(0)[2] != second.blocks(0)[2]
    slots.free(first)
    assert not second.lost
    slots.free(second)
    assert (prefix.members, slots.free_slots(0)) == (0, 10)
    assert slots.allocate(12, 8, prefix=prefix).lost


def test_a_shared_block_leaves_when_the_slowest_is_past_it() -> None:
    slots = Slots(WINDOW, [10])
    prefix = slots.share(8)
    slow, fast = slots.allocate(16, 8, prefix=prefix), slots.allocate(16, 15, prefix=prefix)
    assert list(fast.blocks(0)[:2]) == [-1, -1]
    assert -1 not in slow.blocks(0)
    slots.grow(slow, 16, 12)
    assert prefix.blocks(0)[0] == -1
    slots.grow(slow, 16, 15)
    assert list(prefix.blocks(0)) == [-1, -1]
    late = slots.allocate(8, 7, prefix=prefix)
    assert late.lost
    assert -1 not in prefix.blocks(0)


def test_with_the_slowest_member_goes_what_only_it_needed() -> None:
    slots = Slots(WINDOW, [10])
    prefix = slots.share(16)
    slow, fast = slots.allocate(16, 8, prefix=prefix), slots.allocate(16, 14, prefix=prefix)
    there = prefix.blocks(0)
    slots.suspend(fast)
    slots.free(slow)
    assert list(prefix.blocks(0)) == [-1, *there[1:]]
    assert (slots.free_slots(0), slots.evictable_slots(0)) == (7, 3)
    assert fast.blocks(0) == prefix.blocks(0)
    slots.free(fast)
    assert slots.free_slots(0) == 10


def test_a_new_member_saves_its_prompt_from_being_evicted() -> None:
    slots = Slots(FULL, [6])
    prefix = slots.share(16)
    waiting = slots.allocate(20, prefix=prefix)
    shared = prefix.blocks(0)
    slots.suspend(waiting)
    assert slots.evictable_slots(0) == 5
    running = slots.allocate(24, 16, prefix=prefix)
    assert waiting.state is RequestState.EVICTED
    assert not running.lost
    assert running.blocks(0)[:4] == shared
    assert slots.fits(16, 16, prefix=prefix)
    assert not slots.fits(1)


def test_blocks_that_only_an_evicted_member_needed_are_free() -> None:
    """Also where it goes for the sake of another member; and they are there again when it comes back."""
    slots = Slots(WINDOW, [5])
    prefix = slots.share(8)
    waiting, other = slots.allocate(12, 0, prefix=prefix), slots.allocate(4)
    slots.suspend(waiting)
    running = slots.allocate(16, 15, prefix=prefix)
    assert waiting.state is RequestState.EVICTED
    assert list(running.blocks(0)).count(-1) == 2
    assert list(prefix.blocks(0)) == [-1, -1]
    assert (slots.free_slots(0), slots.evictable_slots(0)) == (2, 0)
    slots.free(other)
    assert slots.resume(waiting)
    assert -1 not in waiting.blocks(0)
    assert slots.free_slots(0) == 0


def test_who_is_refused_is_no_member() -> None:
    slots = Slots(FULL, [4])
    prefix = slots.share(8)
    member = slots.allocate(8, prefix=prefix)
    with pytest.raises(SlotsExhausted) as error:
        slots.allocate(20, prefix=prefix)
    assert (error.value.needed, error.value.free) == (3, 2)
    assert prefix.members == 1
    slots.free(member)
    assert (prefix.members, slots.free_slots(0)) == (0, 4)
    with pytest.raises(SlotsExhausted):
        slots.allocate(20, prefix=prefix)
    assert (prefix.members, slots.free_slots(0)) == (0, 4)


# Other counts -------------------------------------------------------------------------------------------------------


def test_counts_change_while_requests_live() -> None:
    slots = Slots(FULL, [10])
    first, second, third = (slots.allocate(12) for _ in range(3))
    slots.set_counts([12])
    assert (slots.counts, slots.free_slots(0)) == ((12,), 3)
    slots.free(first)
    with pytest.raises(StateError, match=r"^3 slots of 1 active requests") as error:
        slots.set_counts([6])
    assert (error.value.state, error.value.event) == ("active", "set_counts")
    assert slots.counts == (12,)
    slots.free(third)
    slots.set_counts([6])
    assert sorted(second.blocks(0)) == [3, 4, 5]
    slots.set_counts([9])
    assert slots.free_slots(0) == 6


def test_without_a_mover_who_is_in_the_way_is_evicted_and_only_who_is() -> None:
    slots = Slots(FULL, [10])
    low, high = slots.allocate(8), slots.allocate(8)
    slots.suspend(low)
    slots.suspend(high)
    slots.set_counts([3])
    assert (low.state, high.state) == (RequestState.SUSPENDED, RequestState.EVICTED)
    assert slots.free_slots(0) == 1


# Refusals -----------------------------------------------------------------------------------------------------------


def request_in(slots: Slots, state: RequestState) -> CacheRequest:
    request = slots.allocate(4)
    if state in (RequestState.SUSPENDED, RequestState.EVICTED):
        slots.suspend(request)
    if state is RequestState.EVICTED:
        slots.evict_all()
    if state is RequestState.FREED:
        slots.free(request)
    return request


ALL = ("active", "suspended", "evicted", "freed")
MAY = {
    "grow": ALL[:1],
    "suspend": ALL[:1],
    "resume": ALL[1:3],
    "free": ALL[:3],
}


def test_the_table_says_what_may_happen_when() -> None:
    assert {event: tuple(state.value for state in states) for event, states in ALLOWED.items()} == MAY


@pytest.mark.parametrize("state", RequestState)
@pytest.mark.parametrize("event", MAY)
def test_what_the_table_does_not_allow_is_refused_and_changes_nothing(state: RequestState, event: str) -> None:
    slots = Slots(FULL, [4])
    request = request_in(slots, state)
    assert request.state is state
    before = (slots.free_slots(0), slots.evictable_slots(0), slots.requests)
    call = getattr(slots, event)
    arguments: Sequence[Any] = (request, 8) if event == "grow" else (request,)
    if state.value in MAY[event]:
        call(*arguments)
        return
    with pytest.raises(StateError) as error:
        call(*arguments)
    assert (error.value.state, error.value.event) == (state.value, event)
    assert request.state is state
    assert (slots.free_slots(0), slots.evictable_slots(0), slots.requests) == before


def test_a_freed_request_has_no_blocks() -> None:
    request = request_in(Slots(FULL, [4]), RequestState.FREED)
    for ask in (request.blocks, request.scratch):
        with pytest.raises(StateError):
            ask(0)


WRONG: dict[str, Callable[[Slots], object]] = {
    "capacity": lambda slots: slots.allocate(-1),
    "history_length": lambda slots: slots.allocate(4, 5),
    "prefix": lambda slots: slots.allocate(4, prefix=Slots(FULL, [4]).share(4)),
    "request": lambda slots: slots.free(Slots(FULL, [4]).allocate(4)),
    "counts": lambda slots: slots.set_counts([1, 2]),
    "counts[0]": lambda slots: slots.set_counts([-1]),
    "backup": lambda slots: slots.suspend(slots.allocate(4), backup=True),
    "group": lambda slots: slots.free_slots(1),
    "life_cycle": lambda slots: slots.allocate(4).blocks(1),
    "tokens": lambda slots: slots.share(-1),
    "batch": lambda slots: slots.longest(0),
    "max_util_for_resume": lambda slots: Slots(FULL, [4], max_util_for_resume=-1),
    "scratch_rewind": lambda slots: Slots(FULL, [4], scratch_rewind=-1),
    "layout": lambda slots: Slots(None, [4]),  # type: ignore[arg-type]  # on purpose
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_argument_is_named(field: str) -> None:
    with pytest.raises(ConfigError) as error:
        WRONG[field](Slots(FULL, [4]))
    assert error.value.field == field


def test_more_wrong_arguments() -> None:
    slots = Slots(FULL, [4])
    request = slots.allocate(8, 4)
    with pytest.raises(ConfigError, match="keeps what it has"):
        slots.grow(request, 4)
    with pytest.raises(ConfigError, match="stays computed"):
        slots.grow(request, 8, 3)
    with pytest.raises(ConfigError):
        slots.evict_all(backup=True)
    with pytest.raises(ConfigError):
        slots.set_counts("12")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigError):
        slots.free(None)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigError):
        slots.share(4).blocks(-1)
    with pytest.raises(ConfigError):
        request.blocks(-1)
    assert (request.state, slots.free_slots(0)) == (RequestState.ACTIVE, 2)


def test_they_say_what_they_are() -> None:
    slots = Slots(CacheLayout(4, [layer(None), Ssm([Buffer("state", 5)])]), [4, 1])
    request = slots.allocate(8, 4)
    assert repr(slots) == "<Slots [4, 1], 1 requests>"
    assert repr(request) == "<CacheRequest 1, active, capacity 8, history 4 tokens>"
    assert repr(slots.share(9)) == "<Prefix of 8 tokens, 0 members>"
    assert isinstance(slots.share(0), Prefix)
