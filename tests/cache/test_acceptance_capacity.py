"""S7: what a cache says it can hold is what it holds, at every capacity; and dummy work stays within what is there.

The rule here is written down anew: blocks by counting tokens one by one, and no code shared with the cache.
"""

from __future__ import annotations

import array
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.managed import DEMAND, light_collections, on_host, on_torch
from tests.helpers import examples
from vmmcache import MemoryBudget, Slots, SlotsExhausted, wrap_slots
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, EngineLimits, Request, Ssm
from vmmcache.units import MIB

KEY = Buffer("key", 4096)
LAYOUTS = {
    "full": CacheLayout(4, [Attention([KEY])]),
    "windowed": CacheLayout(4, [Attention([KEY], window=10)]),
    "sinks": CacheLayout(4, [Attention([KEY], window=10, sink_tokens=5), Attention([Buffer("key", 8192)])]),
    "both in one group": CacheLayout(4, [Attention([KEY]), Attention([KEY], window=8)]),
    "states": CacheLayout(4, [Ssm([Buffer("state", 4096)]), Attention([KEY])]),
    "blocks of one token": CacheLayout(1, [Attention([KEY], window=3)]),
    "a window below a block": CacheLayout(16, [Attention([KEY], window=3)]),
}


def seen(layout: CacheLayout, cycle: Any, capacity: int, history: int) -> int:
    """Blocks of one life cycle that hold a token which the step, or a later one, still reads or writes."""
    if cycle.kind == "ssm":
        return 1
    t = layout.tokens_per_block
    blocks = set()
    for token in range(capacity):
        if cycle.window is None or token // t < cycle.sink_blocks or token > history - cycle.window:
            blocks.add(token // t)
    return len(blocks)


def needed(layout: CacheLayout, capacity: int, history: int) -> list[int]:
    """Slots per group."""
    slots = [0] * len(layout.groups)
    for cycle in layout.life_cycles:
        slots[cycle.group] += seen(layout, cycle, capacity, history)
    return slots


@pytest.mark.parametrize("name", list(LAYOUTS))
@pytest.mark.parametrize("draft", [0, 4])
def test_capacity_and_allocation_agree_everywhere(name: str, draft: int) -> None:
    """Every capacity, with all but the step's tokens computed, on caches of every small size, null block and not."""
    layout = LAYOUTS[name]
    writes = 1 + draft
    for count, null in ((2, False), (3, True), (5, False), (8, True), (9, False)):
        slots = Slots(layout, [count] * len(layout.groups), null_block=null)
        usable = count - null
        best = 0
        for capacity in range(90):
            for history in {0, max(0, capacity - writes), capacity}:
                fits = slots.fits(capacity, history)
                assert fits == all(need <= usable for need in needed(layout, capacity, history)), (capacity, history)
                try:
                    slots.free(slots.allocate(capacity, history))
                except SlotsExhausted:
                    assert not fits
                else:
                    assert fits
                if fits and history == max(0, capacity - writes) and best == capacity - 1:
                    best = capacity
        longest = slots.longest(upper=80, draft=draft)
        if longest == 80:
            assert best >= 80
            continue
        assert longest == (best if best >= writes else 0)
        if longest:
            assert longest % layout.tokens_per_block == 0
            (request,) = slots.dummy(history=longest - writes, draft=draft)
            assert request.capacity == longest, "no second +1"
            slots.free(request)
            # And by steps of that size from the beginning.
            grown = slots.allocate(longest % writes or writes)
            while grown.capacity < longest:
                slots.grow(grown, grown.capacity + writes, grown.capacity)
            with pytest.raises(SlotsExhausted):
                slots.grow(grown, longest + 1, longest + 1 - writes)


def test_windows_hold_what_a_step_with_drafts_writes() -> None:
    """The smallest case: a window of three tokens in blocks of one, and a step that writes five."""
    slots = Slots(LAYOUTS["blocks of one token"], [4])
    assert slots.longest(upper=1000) == 1000
    assert slots.longest(upper=1000, draft=4) == 0
    assert Slots(LAYOUTS["blocks of one token"], [7]).longest(upper=1000, draft=4) == 1000


@pytest.mark.parametrize("gate", [0, 0.5, 1])
def test_the_gate_of_resume(gate: float) -> None:
    """S8, F18: refused iff active requests have more than that share, before it takes anything."""
    slots = Slots(LAYOUTS["full"], [8], max_util_for_resume=gate)
    waiting = slots.allocate(4)
    slots.suspend(waiting)
    others = []
    for active in range(8):
        assert slots.utilisation(0) * 8 == active
        allowed = active <= gate * 8
        if active == 7 and not allowed:
            break
        assert slots.resume(waiting) == allowed, active
        if allowed:
            slots.suspend(waiting)
        others.append(slots.allocate(4))
    assert waiting.lost == (len(others) == 8), "the last one took its slot"
    assert slots.resume(waiting) is False


def test_nobody_is_evicted_for_blocks_that_the_newcomer_shares() -> None:
    """The older one has nothing but a prompt that whoever comes in needs as well: evicting it would be in vain."""
    slots = Slots(CacheLayout(1, [Attention([KEY])]), [9])
    prompt = slots.share(4)
    sharing, alone = slots.allocate(4, 4, prefix=prompt), slots.allocate(4, 4)
    slots.suspend(sharing)
    slots.suspend(alone)
    slots.allocate(7, 4, prefix=prompt)
    assert (sharing.state.value, alone.state.value) == ("suspended", "evicted")


@settings(max_examples=examples(25))
@given(st.sampled_from(sorted(LAYOUTS)), st.lists(st.integers(1, 14), min_size=2, max_size=6), st.data())
def test_windows_evict_while_counts_change(name: str, counts: list[int], data: st.DataObject) -> None:
    """S8, S15: no slot has two owners, none lies beyond the count, and all are free in the end."""
    layout = LAYOUTS[name]
    groups = range(len(layout.groups))
    slots = Slots(layout, [counts[0]] * len(layout.groups), null_block=True)
    requests: list[Any] = []
    for count in counts[1:]:
        with suppress(SlotsExhausted):
            requests.append(slots.allocate(data.draw(st.integers(1, 20))))
        for request in requests:
            if request.state.value == "active" and data.draw(st.booleans()):
                try:
                    slots.grow(request, request.capacity + data.draw(st.integers(0, 9)), request.capacity)
                except SlotsExhausted:
                    slots.suspend(request)
        for request in requests:
            if request.state.value == "active":
                slots.suspend(request)
        slots.set_counts([count] * len(layout.groups))
        for request in requests:
            slots.resume(request)
        taken: list[set[int]] = [set() for _ in groups]
        for request in requests:
            for number, cycle in enumerate(layout.life_cycles):
                for slot in request.blocks(number):
                    if slot >= 0:
                        assert 0 < slot < count, "the null block is nobody's"
                        assert slot not in taken[cycle.group]
                        taken[cycle.group].add(slot)
        assert [len(one) + slots.free_slots(group) for group, one in enumerate(taken)] == list(slots.usable)
    for request in requests:
        slots.free(request)
    assert [slots.free_slots(group) for group in groups] == list(slots.usable)


def test_ids_of_dummy_work_stay_in_what_is_committed(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2, S13: an engine wraps ids, of whatever kind they are, and what it writes is memory; 0 stays the null block."""
    import torch

    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with light_collections(), make(null_block=True) as manager:
        committed = min(manager.ensure(33))
        views: Any = manager.views()
        ids = list(range(0, 500, 7))
        for wrapped in (
            wrap_slots(ids, committed),
            wrap_slots(tuple(ids), committed),
            wrap_slots(array.array("i", ids), committed),
            wrap_slots(torch.tensor(ids), committed),
            [wrap_slots(one, committed) for one in ids],
        ):
            numbers = [int(one) for one in wrapped]
            assert numbers[0] == 0
            assert all(0 < one < committed for one in numbers[1:])
            views["full.0"]["key"][numbers] = 1
        del views


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("committed", [2, 100, 129, 256, 257, 1000, 40_000])
def test_ids_of_narrow_kinds(kind: str, committed: int) -> None:
    """The count itself may be no number of their kind, and then none of them is beyond it."""
    import torch

    dtype = getattr(torch, kind)
    ids = torch.arange(0, torch.iinfo(dtype).max, 3).to(dtype)
    wrapped = wrap_slots(ids, committed)
    assert wrapped.dtype == dtype
    assert wrapped.data_ptr() != ids.data_ptr()
    assert wrapped.tolist() == wrap_slots(ids.tolist(), committed)


def test_the_report_adds_up(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2, S3, S6, S12: what a person reads is a sum, and comes to what is mapped."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    limits = EngineLimits(max_num_tokens=64, max_seq_len=128)
    with light_collections(), make(limits=limits, constraints=[DEMAND, Batch([Request(64, 63, count=3)])]) as manager:
        with manager.warm_up() as warm:
            warm.ran("mixed_step", tokens=64)
            warm.ran("prompt_logprobs", rows=7)
            warm.skipped("encoder", "none")
        report = manager.finalize()
        budget = report.budget
        assert budget is not None
        caps = (budget.requested - budget.non_kv, budget.headroom - budget.margin)
        assert budget.nbytes == max(0, min(caps) - budget.transient_peak - budget.graph_estimate)
        assert report.nbytes == sum(group.nbytes for group in report.groups) == manager.plan.nbytes
        assert 0 <= budget.nbytes - report.nbytes < 4 * report.granule + 64 * 1024
        assert [group.committed for group in report.groups] == list(manager.committed)
        assert {one.shape for one in report.skipped} == {"encoder", "prompt_logprobs"}
        said = report.to_dict()
        assert said["budget"]["nbytes"] - said["others"] - said["withheld"] >= said["nbytes"]
        text = str(report)
        for told in ("16 MiB", "the smaller of the first two", "ran too small to count", "warm-up left out encoder"):
            assert told in text
        assert "raise" not in text


def test_stated_sizes_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """S12."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with light_collections():
        for budget, told in ((MemoryBudget(nbytes=3 * MIB), "bytes"), (MemoryBudget(slots=40), "slots")):
            for make in (on_host, on_torch):
                with make(budget=budget) as manager:
                    report = manager.finalize()
                    assert (report.sized_by, report.budget, report.estimate) == (told, None, None)
                    assert report.nbytes <= 3 * MIB
                    assert told != "slots" or manager.committed == (40, 40)
