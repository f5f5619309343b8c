"""Slots from many threads: every operation is done as a whole before another begins (S8)."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from tests.cache.slot_support import LAYOUTS, memory_for
from tests.helpers import PATIENCE_S
from vmmcache import CacheRequest, SlotsExhausted, StateError
from vmmcache.cache.slots import Slots

THREADS = 8
STEPS = 250


@pytest.fixture(autouse=True)
def _switch_often() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def owned(slots: Slots, request: CacheRequest) -> list[tuple[int, int]]:
    return [
        (cycle.group, slot)
        for number, cycle in enumerate(slots.layout.life_cycles)
        for slot in (*request.blocks(number), *request.scratch(number).slots)
        if slot != -1
    ]


@pytest.mark.parametrize("name", ["state", "one group"])
def test_requests_of_many_threads_never_meet(name: str) -> None:
    layout = LAYOUTS[name]
    counts = [60] * len(layout.groups)
    slots = Slots(layout, counts, mover=memory_for(layout, counts), scratch_rewind=0)
    start = threading.Barrier(THREADS)
    resumed = Counter[str]()

    def serve(seed: int) -> None:
        random = Random(seed)
        mine: list[CacheRequest] = []
        start.wait()
        for _ in range(STEPS):
            step = random.choice(["allocate", "allocate", "grow", "grow", "suspend", "resume", "free", "look"])
            try:
                if step == "allocate" and len(mine) < 4:
                    mine.append(slots.allocate(random.randint(0, 30)))
                elif mine:
                    request = random.choice(mine)
                    if step == "grow":
                        slots.grow(request, request.capacity + random.randint(0, 6), request.capacity)
                    elif step == "suspend":
                        slots.suspend(request, backup=random.random() < 0.5)
                    elif step == "resume":
                        resumed[str(slots.resume(request))] += 1
                    elif step == "free":
                        mine.remove(request)
                        slots.free(request)
                    else:
                        assert slots.longest() >= 0
                        assert slots.utilisation(0) <= 1
            except SlotsExhausted as error:
                assert error.needed > error.free
            except StateError as error:
                # Only what this thread itself did out of order: nobody else touches its requests.
                assert error.event in ("grow", "suspend", "resume")

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(serve, seed) for seed in range(THREADS)]:
            future.result(PATIENCE_S)
    assert resumed["True"] > 0
    everything = [slot for request in slots.requests for slot in owned(slots, request)]
    assert len(set(everything)) == len(everything)
    for group, usable in enumerate(slots.usable):
        assert slots.free_slots(group) == usable - sum(owner == group for owner, _ in everything)
    for request in slots.requests:
        slots.free(request)
    assert [slots.free_slots(group) for group in range(len(counts))] == counts


def test_counts_change_under_running_threads() -> None:
    layout = LAYOUTS["full"]
    slots = Slots(layout, [64], mover=memory_for(layout, [64]))
    done = threading.Event()

    def serve(seed: int) -> None:
        random = Random(seed)
        while not done.is_set():
            try:
                request = slots.allocate(random.randint(0, 20))
            except SlotsExhausted:
                continue
            slots.suspend(request)
            slots.resume(request)
            blocks = [slot for slot in request.blocks(0) if slot != -1]
            assert len(set(blocks)) == len(blocks)
            slots.free(request)

    changed = Counter[bool]()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(serve, seed) for seed in range(4)]
        random = Random(0)
        while changed[True] < 100 and changed.total() < 20_000:
            try:
                slots.set_counts([random.randint(8, 64)])
            except StateError:
                changed[False] += 1
            else:
                changed[True] += 1
        done.set()
        for future in futures:
            future.result(PATIENCE_S)
    assert changed[True] == 100
    assert slots.free_slots(0) == slots.counts[0]
