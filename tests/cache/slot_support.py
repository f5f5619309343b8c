"""Slots over real memory, and a look at them that believes nothing: who has which slot, and what is in it."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence

from tests.cache.slot_model import ACTIVE, EVICTED, SUSPENDED, Element, Entry, SlotModel
from vmmcache.cache.backing import Backing
from vmmcache.cache.plain_backing import PlainBacking
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.prefix import Prefix
from vmmcache.cache.requests import CacheRequest
from vmmcache.cache.slot_contents import SlotCopy
from vmmcache.cache.slots import Slots
from vmmcache.planning import Attention, Buffer, CacheLayout, Ssm

GRANULE = 4096


def layer(window: int | None, nbytes: int = 16, sinks: int = 0, count: int = 1) -> Attention:
    return Attention([Buffer("key", nbytes)], window, sinks, count=count)


# Small blocks, so that a few tokens are many; slots of 16 bytes or more, so that each can say whose it is.
LAYOUTS = {
    "full": CacheLayout(4, [layer(None)]),
    "window": CacheLayout(4, [layer(8)]),
    "sinks": CacheLayout(3, [layer(7, sinks=4), layer(None, 32)]),
    "one group": CacheLayout(4, [layer(None), layer(6), layer(13, sinks=1)]),
    "state": CacheLayout(4, [Ssm([Buffer("state", 48)]), layer(None), layer(5)]),
    "state in a group": CacheLayout(4, [Ssm([Buffer("state", 16)]), layer(None)]),
    "two pools": CacheLayout(2, [Attention([Buffer("key", 16), Buffer("scale", 8)], 5), layer(None, 24, count=2)]),
    "four layers": CacheLayout(2, [layer(3, count=4), layer(None, 32)]),
    "single tokens": CacheLayout(1, [layer(1), layer(None, 24)]),
}


def memory_for(layout: CacheLayout, counts: Sequence[int]) -> PlainBacking:
    backing = PlainBacking(PoolMap(layout, "block-major", GRANULE), [max(1, count) for count in counts])
    backing.commit(list(counts))
    return backing


def mark(element: Element) -> bytes:
    return struct.pack("<BBHH", {"own": 1, "shared": 2}[element.kind], element.cycle, element.owner, element.block)


class Watch:
    """What the slots say, held against the model, and what memory says."""

    def __init__(self, slots: Slots, model: SlotModel, backing: Backing | None, reserved: int) -> None:
        self.slots = slots
        self.model = model
        self.backing = backing
        self.reserved = reserved
        self.handles: dict[int, CacheRequest] = {}
        self.prefixes: dict[int, Prefix] = {}

    def where(self) -> dict[Element, int]:
        """The slot of everything that has one. Fails where anything has two, or anything is not where it is said."""
        found: dict[Element, int] = {}
        for number, prefix in self.prefixes.items():
            for cycle in range(len(self.model.cycles)):
                table = prefix.blocks(cycle)
                found |= {Element("shared", number, cycle, b): slot for b, slot in enumerate(table) if slot != -1}
        for number, request in self.handles.items():
            entry = self.model.requests[number]
            prompt = 0 if entry.prefix is None else self.model.prompts[entry.prefix]
            for cycle, key in enumerate(self.model.cycles):
                table = request.blocks(cycle)
                blocks = 1 if key.ssm else self.model.planner.blocks(entry.capacity)
                assert len(table) == blocks
                for block, slot in enumerate(table):
                    if slot == -1:
                        continue
                    if block < prompt and not key.ssm:
                        assert entry.prefix is not None
                        assert self.model.planner.live(key, block, entry.history)
                        assert found[Element("shared", entry.prefix, cycle, block)] == slot
                    else:
                        found[Element("own", number, cycle, block)] = slot
                scratch = request.scratch(cycle)
                if entry.state != EVICTED:
                    assert list(range(scratch.start, scratch.stop)) == self.model.passing(entry, cycle)
                found |= {Element("scratch", number, cycle, i): slot for i, slot in enumerate(scratch.slots)}
        return found

    def check(self) -> dict[Element, int]:
        """Slots, states and counts are what the model says."""
        model, slots = self.model, self.slots
        assert {number: request.state.value for number, request in self.handles.items()} == {
            number: entry.state for number, entry in model.requests.items()
        }
        assert {number: request.lost for number, request in self.handles.items()} == {
            number: entry.lost for number, entry in model.requests.items()
        }
        resident = model.union(ACTIVE, SUSPENDED)
        found = self.where()
        assert found.keys() == resident
        for entry in model.requests.values():
            if entry.state != EVICTED:
                self._all_visible(entry, found)
        active = model.by_group(model.union(ACTIVE))
        taken = model.by_group(resident)
        for group, usable in enumerate(model.usable):
            numbers = [slot for element, slot in found.items() if model.group_of[element.cycle] == group]
            assert len(set(numbers)) == len(numbers), "a slot has two owners"
            assert all(self.reserved <= slot < slots.counts[group] for slot in numbers)
            assert slots.usable[group] == usable
            assert slots.free_slots(group) == usable - taken[group], "a slot is lost"
            assert slots.evictable_slots(group) == taken[group] - active[group]
            assert slots.utilisation(group) * usable == active[group]
        return found

    def _all_visible(self, entry: Entry, found: Collection[Element]) -> None:
        """A resident request's own table shows every block of its prompt that it sees and has capacity for."""
        if entry.prefix is None:
            return
        blocks = min(self.model.prompts[entry.prefix], self.model.planner.blocks(entry.capacity))
        for cycle, key in enumerate(self.model.cycles):
            if not key.ssm:
                table = self.handles[entry.number].blocks(cycle, 0, blocks)
                live = [self.model.planner.live(key, block, entry.history) for block in range(blocks)]
                assert [slot != -1 for slot in table] == live

    def write(self, elements: Iterable[Element]) -> None:
        """Compute contents: every slot says what it is."""
        self._each(elements, write=True)

    def read(self, elements: Iterable[Element]) -> None:
        """Contents are what was computed."""
        self._each(elements, write=False)

    def _each(self, elements: Iterable[Element], *, write: bool) -> None:
        backing = self.backing
        if backing is None:
            return
        where = self.where()
        wanted = sorted(element for element in elements if element.kind != "scratch")
        for group, indices in enumerate(backing.pools.groups):
            mine = [element for element in wanted if self.model.group_of[element.cycle] == group]
            numbers = [where[element] for element in mine]
            if not mine:
                continue
            strides = [backing.pools.segments[index].stride for index in indices]
            parts = tuple(bytearray(b"".join(mark(e).ljust(stride, b".") for e in mine)) for stride in strides)
            if write:
                backing.write_slots(group, numbers, SlotCopy(group, len(numbers), parts))
            else:
                assert tuple(map(bytes, backing.read_slots(group, numbers).parts)) == tuple(map(bytes, parts))
