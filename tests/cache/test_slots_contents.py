"""What slots hold survives what it should: eviction with a backup, moves, and memory that fails (S11, S15)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import pytest

from tests.cache.slot_model import ACTIVE, Entry, SlotModel
from tests.cache.slot_support import LAYOUTS, Watch, memory_for
from vmmcache import DriverError, RequestState
from vmmcache.cache.backing import Backing
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.slots import Slots
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.planning import CacheLayout
from vmmcache.units import MIB


class Failing:
    """A real backing that fails at one of its calls."""

    def __init__(self, backing: Backing) -> None:
        self.backing = backing
        self.calls: list[str] = []
        self.fail_at: int | None = None

    def _call(self, verb: str) -> None:
        self.calls.append(verb)
        if self.fail_at is not None and len(self.calls) > self.fail_at:
            raise DriverError("no", driver="test", call=verb)

    def move_slots(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        self._call("move")
        self.backing.move_slots(group, pairs)

    def read_slots(self, group: int, slots: Sequence[int]) -> Any:
        self._call("read")
        return self.backing.read_slots(group, slots)

    def write_slots(self, group: int, slots: Sequence[int], copy: Any) -> None:
        self._call("write")
        self.backing.write_slots(group, slots, copy)


@pytest.fixture(autouse=True, params=["plain", "vmm"])
def _memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both kinds of memory; the host driver's stands for what has virtual memory management."""
    Cache.kind = request.param
    yield
    while Cache.open:
        Cache.open.pop().close()


class Cache:
    """Slots over real memory, their model, and requests whose contents were computed."""

    kind: ClassVar[str]
    open: ClassVar[list[Backing]] = []

    def __init__(self, name: str, counts: Sequence[int]) -> None:
        layout: CacheLayout = LAYOUTS[name]
        if self.kind == "plain":
            self.memory: Backing = memory_for(layout, counts)
        else:
            self.memory = VmmBacking(PoolMap(layout, "block-major", 2 * MIB), counts, "host")
            self.memory.commit(counts)
        self.open.append(self.memory)
        self.mover = Failing(self.memory)
        self.slots = Slots(layout, counts, mover=self.mover, max_util_for_resume=1)
        self.model = SlotModel(layout, counts, Fraction(1), None)
        self.watch = Watch(self.slots, self.model, self.memory, 0)

    def share(self, tokens: int) -> int:
        number = len(self.watch.prefixes) + 1
        self.watch.prefixes[number] = self.slots.share(tokens)
        self.model.prompts[number] = tokens // self.slots.layout.tokens_per_block
        return number

    def allocate(self, capacity: int, history: int = 0, prefix: int | None = None) -> int:
        shared = None if prefix is None else self.watch.prefixes[prefix]
        there = self.model.union(ACTIVE, "suspended")
        request = self.slots.allocate(capacity, history, prefix=shared)
        entry = Entry(request.number, capacity, history, prefix)
        assert self.model.enter(entry)
        self.watch.handles[request.number] = request
        self.watch.write(self.model.needs(entry) - there)
        return request.number

    def suspend(self, number: int, backup: bool = True) -> None:
        self.slots.suspend(self.watch.handles[number], backup)
        self.model.suspend(number, backup)

    def resume(self, number: int) -> None:
        assert self.slots.resume(self.watch.handles[number])
        assert self.model.resume(number)

    def intact(self) -> None:
        """Everything is where the model says, and holds what was computed."""
        self.watch.read(self.watch.check())


def test_a_backup_comes_back_to_other_slots() -> None:
    cache = Cache("two pools", [20, 20])
    first = cache.allocate(9, 8)
    before = cache.watch.handles[first].blocks(1)
    cache.suspend(first)
    others = cache.allocate(20, 0)
    cache.allocate(17, 16)
    assert cache.watch.handles[first].state is RequestState.EVICTED
    cache.slots.free(cache.watch.handles.pop(others))
    cache.model.free(others)
    cache.resume(first)
    assert cache.watch.handles[first].blocks(1) != before
    assert not cache.watch.handles[first].lost
    cache.intact()


def test_of_a_shared_prompt_only_what_is_missing_is_written() -> None:
    """Another member may be reading the rest."""
    cache = Cache("window", [10])
    prefix = cache.share(12)
    behind = cache.allocate(13, 4, prefix)
    ahead = cache.allocate(20, 16, prefix)
    cache.suspend(behind)
    cache.allocate(20, 0)
    assert cache.watch.handles[behind].state is RequestState.EVICTED
    assert list(cache.watch.prefixes[prefix].blocks(0))[:2] == [-1, -1]
    cache.slots.free(cache.watch.handles.pop(3))
    cache.model.free(3)
    cache.mover.calls.clear()
    cache.resume(behind)
    # Its own block, and blocks 0 and 1 of the prompt, each by itself; block 2 was there.
    assert cache.mover.calls == ["write"] * 3
    assert cache.watch.handles[ahead].state is RequestState.ACTIVE
    cache.intact()


def test_a_whole_prompt_comes_back_with_one_of_its_members() -> None:
    cache = Cache("sinks", [40, 40])
    prefix = cache.share(14)
    numbers = [cache.allocate(20 + n, 12 * (n > 0), prefix) for n in range(3)]
    for number in numbers:
        cache.suspend(number)
    assert cache.slots.evict_all() == 3
    for number in list(cache.model.order):
        cache.model.evict(number)
    for number in reversed(numbers):
        cache.resume(number)
        cache.intact()
    assert not any(request.lost for request in cache.slots.requests)


def test_contents_move_down_with_their_slots() -> None:
    cache = Cache("one group", [40])
    low, high, last = cache.allocate(8), cache.allocate(8), cache.allocate(8)
    cache.suspend(high, backup=False)
    cache.suspend(last, backup=False)
    cache.slots.free(cache.watch.handles.pop(low))
    cache.model.free(low)
    cache.slots.set_counts([14])
    cache.model.usable = [14]
    cache.intact()
    assert cache.mover.calls == ["move"]
    assert not any(request.lost for request in cache.slots.requests)


def full_of_backups() -> Cache:
    cache = Cache("two pools", [20, 20])
    prefix = cache.share(4)
    for _ in range(3):
        cache.suspend(cache.allocate(8, 0, prefix))
    cache.mover.calls.clear()
    return cache


@pytest.mark.parametrize("call", range(8))
def test_a_copy_that_fails_evicts_nobody(call: int) -> None:
    cache = full_of_backups()
    cache.mover.fail_at = call
    with pytest.raises(DriverError):
        cache.slots.allocate(38)
    with pytest.raises(DriverError):
        cache.slots.allocate(38, prefix=cache.watch.prefixes[1])
    with pytest.raises(DriverError):
        cache.slots.evict_all()
    with pytest.raises(DriverError):
        cache.slots.set_counts([1, 1])
    cache.intact()


@pytest.mark.parametrize("call", [0, 1, 2, 3])
def test_contents_that_fail_to_come_back_leave_the_request_evicted_with_its_copy(call: int) -> None:
    cache = full_of_backups()
    cache.slots.evict_all()
    for number in list(cache.model.order):
        cache.model.evict(number)
    cache.mover.calls.clear()
    cache.mover.fail_at = call
    request = cache.watch.handles[1]
    with pytest.raises(DriverError):
        cache.slots.resume(request)
    assert request.state is RequestState.EVICTED
    cache.intact()
    cache.mover.fail_at = None
    cache.resume(1)
    cache.intact()
    assert not request.lost


def test_a_move_that_fails_leaves_counts_and_tables() -> None:
    cache = Cache("two pools", [20, 20])
    cache.suspend(cache.allocate(8, 0), backup=False)
    cache.suspend(cache.allocate(8, 0), backup=False)
    cache.slots.free(cache.watch.handles.pop(1))
    cache.model.free(1)
    for fail_at in (0, 1):
        cache.mover.calls.clear()
        cache.mover.fail_at = fail_at
        with pytest.raises(DriverError):
            cache.slots.set_counts([4, 4])
        assert cache.mover.calls == ["move"] * (fail_at + 1)
        assert cache.slots.counts == (20, 20)
        cache.intact()
    cache.mover.fail_at = None
    cache.slots.set_counts([4, 4])
    cache.model.usable = [4, 4]
    cache.intact()


def test_a_move_that_fails_after_an_eviction_leaves_the_evicted_evicted() -> None:
    """The named exception: what was evicted for the move stays so."""
    cache = Cache("full", [10])
    first, second = cache.allocate(8), cache.allocate(16)
    cache.suspend(first, backup=False)
    cache.suspend(second, backup=False)
    cache.mover.fail_at = 0
    with pytest.raises(DriverError):
        cache.slots.set_counts([4])
    assert cache.watch.handles[first].state is RequestState.EVICTED
    cache.model.evict(first)
    cache.intact()
    assert cache.slots.counts == (10,)
