"""Slots as sets: what has a slot is an element of a set, and nothing is counted that is not the size of one.

Which blocks need slots comes from the block-by-block model of the planner's tests. Slots have no numbers here: the
model says what has one, and who is evicted, and the real thing's numbers are held against that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from tests.planning.model import Model
from vmmcache.planning import CacheLayout, Request

ACTIVE, SUSPENDED, EVICTED = "active", "suspended", "evicted"


class Element(NamedTuple):
    """Something that needs a slot of its own."""

    kind: str
    """"own", "shared" or "scratch"."""
    owner: int
    """A request's number; a prefix's for "shared"."""
    cycle: int
    block: int


@dataclass
class Entry:
    """A request."""

    number: int
    capacity: int
    history: int
    prefix: int | None = None
    state: str = ACTIVE
    lost: bool = False
    backup: bool = False


class SlotModel:
    """Requests, and what they need."""

    def __init__(self, layout: CacheLayout, usable: Sequence[int], share: Fraction, rewind: int | None) -> None:
        self.planner = Model(layout, rewind)
        self.cycles = list(self.planner.sizes)
        self.group_of = [next(g for g, group in enumerate(self.planner.groups) if c in group) for c in self.cycles]
        self.constant = [all(cycle.ssm for cycle in group) for group in self.planner.groups]
        self.usable = list(usable)
        self.share = share
        self.requests: dict[int, Entry] = {}
        self.prompts: dict[int, int] = {}
        """Blocks of each prefix."""
        self.order: list[int] = []
        """Suspended requests, the least recently suspended first."""

    # What needs slots ------------------------------------------------------------------------------------------------

    def needs(self, entry: Entry) -> set[Element]:
        """Everything that a request needs, evicted or not."""
        return set(self._needs(entry))

    def _needs(self, entry: Entry) -> Iterator[Element]:
        planner, number = self.planner, entry.number
        prompt = 0 if entry.prefix is None else self.prompts[entry.prefix]
        for place, cycle in enumerate(self.cycles):
            if cycle.ssm:
                yield Element("own", number, place, 0)
                continue
            for block in range(prompt):
                if entry.prefix is not None and planner.live(cycle, block, entry.history):
                    yield Element("shared", entry.prefix, place, block)
            passing = self.passing(entry, place)
            for block in range(prompt, planner.blocks(entry.capacity)):
                if planner.live(cycle, block, entry.history) and block not in passing:
                    yield Element("own", number, place, block)
            for slot in range(ceil(len(passing) * planner.share[cycle])):
                yield Element("scratch", number, place, slot)

    def passing(self, entry: Entry, place: int) -> list[int]:
        """Blocks that are written by the step and stale at its end."""
        planner, cycle = self.planner, self.cycles[place]
        if planner.rewind is None or cycle.window is None or cycle.ssm:
            return []
        prompt = 0 if entry.prefix is None else self.prompts[entry.prefix]
        end = max(0, entry.capacity - planner.rewind)
        written = range(max(prompt, planner.blocks(entry.history)), planner.blocks(entry.capacity))
        return [b for b in written if planner.live(cycle, b, entry.history) and not planner.live(cycle, b, end)]

    def union(self, *states: str, without: int | None = None) -> set[Element]:
        """What requests in these states need together."""
        found: set[Element] = set()
        for entry in self.requests.values():
            if entry.state in states and entry.number != without:
                found |= self.needs(entry)
        return found

    def by_group(self, elements: set[Element]) -> list[int]:
        """How many slots of each group that is."""
        counts = [0] * len(self.usable)
        for element in elements:
            counts[self.group_of[element.cycle]] += 1
        return counts

    def within(self, elements: set[Element]) -> bool:
        """Whether there are so many slots."""
        return all(a <= b for a, b in zip(self.by_group(elements), self.usable, strict=True))

    # What happens ----------------------------------------------------------------------------------------------------

    def enter(self, entry: Entry) -> bool:
        """Put a request in, as active, or not at all; whoever is in the way is evicted."""
        active = self.union(ACTIVE, without=entry.number) | self.needs(entry)
        if not self.within(active):
            return False
        there = self.union(ACTIVE, SUSPENDED, without=entry.number)
        self.evict_until(active, self.needs(entry), without=entry.number)
        old = self.requests.get(entry.number)
        if old is None:
            fresh = self.needs(entry) - there
            computed = self.planner.blocks(entry.history)
            entry.lost = any(e.kind == "shared" and e.block < computed for e in fresh)
        entry.state = ACTIVE
        self.requests[entry.number] = entry
        return True

    def evict_until(self, active: set[Element], needed: set[Element], without: int | None = None) -> None:
        """Evict, oldest first, until `needed` has room, sparing those who have nothing to give where it lacks."""
        for number in list(self.order):
            wanted = self.by_group(self.union(ACTIVE, SUSPENDED, without=without) | needed)
            short = {group for group, count in enumerate(wanted) if count > self.usable[group]}
            if not short:
                return
            gives = self.needs(self.requests[number]) - active
            if any(self.group_of[element.cycle] in short for element in gives):
                self.evict(number)

    def evict(self, number: int, backup: bool = False) -> None:
        """Take everything from a suspended request."""
        entry = self.requests[number]
        entry.state = EVICTED
        entry.backup = entry.backup or backup
        entry.lost = entry.lost or not entry.backup
        self.order.remove(number)

    def suspend(self, number: int, backup: bool) -> None:
        """Let a request wait."""
        self.requests[number].state = SUSPENDED
        self.requests[number].backup = backup
        self.order.append(number)

    def gate_open(self) -> bool:
        """Whether anything may be resumed."""
        return all(
            constant or not total or Fraction(used, total) <= self.share
            for used, total, constant in zip(self.by_group(self.union(ACTIVE)), self.usable, self.constant, strict=True)
        )

    def resume(self, number: int) -> bool:
        """Let a request go on, if it may and there is room."""
        entry = self.requests[number]
        if not self.gate_open():
            return False
        if entry.state == SUSPENDED:
            self.order.remove(number)
            entry.state = ACTIVE
            return True
        return self.enter(entry)

    def free(self, number: int) -> None:
        """Forget a request."""
        if self.requests.pop(number).state == SUSPENDED:
            self.order.remove(number)

    def as_request(self, entry: Entry) -> Request:
        """The same for the planner."""
        return Request(entry.capacity, entry.history)
