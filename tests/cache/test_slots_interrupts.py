"""Ctrl-C in the middle of an operation of `Slots`: it was done, or it was not, and no slot is lost or had twice (S8).

Interrupts come before lines, and after calls and jumps, where the interpreter looks for signals; one run of a small
life for each place. What is there afterwards is held against the model of sets, for the states that requests say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from fractions import Fraction
from random import Random
from typing import Final

import pytest

from tests.cache.interrupts import FineInterrupt
from tests.cache.slot_model import ACTIVE, EVICTED, SUSPENDED, Element, Entry, SlotModel
from tests.cache.slot_support import LAYOUTS, Watch
from tests.helpers import examples
from vmmcache import CacheRequest, Slots, SlotsExhausted, StateError
from vmmcache.cache.prefix import Prefix

LIVES: Final = 10
PLACES: Final = 11
"""In how many lives an operation is interrupted, and in how many places of each."""


class Contents:
    """What is in each slot. A mover that needs no memory."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], Element | None] = {}

    def move_slots(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        self.write_slots(group, [to for _, to in pairs], self.read_slots(group, [source for source, _ in pairs]))

    def read_slots(self, group: int, slots: Sequence[int]) -> list[Element | None]:
        return [self.held.get((group, slot)) for slot in slots]

    def write_slots(self, group: int, slots: Sequence[int], copy: list[Element | None]) -> None:
        self.held |= {(group, slot): each for slot, each in zip(slots, copy, strict=True)}


Fate = tuple[str, int, int, bool]
"""State, capacity, history, and whether contents are lost."""
Operation = Callable[["Life"], object]


class Life:
    """Requests of a random life, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.layout = LAYOUTS[random.choice(sorted(LAYOUTS))]
        self.rewind = random.choice([None, 0, 2])
        self.usable = [random.choice([24, 30, 40]) for _ in self.layout.groups]
        self.contents = Contents()
        self.slots = Slots(self.layout, self.usable, scratch_rewind=self.rewind, mover=self.contents)
        self.prompt: Prefix = self.slots.share(12)
        self.written: set[Element] = set()
        for _ in range(random.randint(8, 16)):
            self.step()
            self.write()

    def some(self, *states: str) -> CacheRequest:
        fitting = [request for request in self.slots.requests if request.state.value in states]
        if not fitting:
            raise StateError("nobody is", state="none", event="choose")
        return self.random.choice(fitting)

    def step(self) -> None:
        with suppress(SlotsExhausted, StateError):
            match self.random.choice(["allocate", "allocate", "grow", "suspend", "suspend", "resume", "free"]):
                case "allocate":
                    capacity = self.random.randint(1, 30)
                    prefix = self.random.choice([None, self.prompt, self.prompt])
                    self.slots.allocate(capacity, self.random.randint(0, capacity), prefix=prefix)
                case "grow":
                    request = self.some(ACTIVE)
                    self.slots.grow(request, request.capacity + self.random.randint(0, 5), request.history_length)
                case "suspend":
                    self.slots.suspend(self.some(ACTIVE), backup=self.random.random() < 0.7)
                case "resume":
                    self.slots.resume(self.some(SUSPENDED, EVICTED))
                case _:
                    self.slots.free(self.some(ACTIVE, SUSPENDED, EVICTED))

    # What there is ---------------------------------------------------------------------------------------------------

    @property
    def fates(self) -> dict[int, Fate]:
        return {
            request.number: (request.state.value, request.capacity, request.history_length, request.lost)
            for request in self.slots.requests
        }

    def watch(self) -> Watch:
        """What the slots say, and a model of just that."""
        model = SlotModel(self.layout, self.slots.usable, Fraction("0.97"), self.rewind)
        model.prompts[1] = self.prompt.tokens // self.layout.tokens_per_block
        watch = Watch(self.slots, model, None, 0)
        watch.prefixes[1] = self.prompt
        for request in self.slots.requests:
            state, capacity, history, lost = self.fates[request.number]
            prefix = None if request.prefix is None else 1
            watch.handles[request.number] = request
            model.requests[request.number] = Entry(request.number, capacity, history, prefix, state, lost)
        return watch

    def where(self) -> dict[tuple[int, int], Element]:
        """Who has which slot; checked against the model."""
        watch = self.watch()
        assert self.prompt.members == sum(
            request.prefix is not None and request.state.value != EVICTED for request in self.slots.requests
        )
        return {(watch.model.group_of[element.cycle], slot): element for element, slot in watch.check().items()}

    def write(self) -> None:
        """Compute what is not there."""
        where = self.where()
        self.contents.held |= where
        self.written |= set(where.values())

    def check_contents(self, resident: Collection[Element] = ()) -> None:
        """What requests have not lost, or was `resident` before, is there still, in whatever slot."""
        fates = self.fates
        for place, element in self.where().items():
            kept = element.kind == "own" and element in self.written and not fates[element.owner][3]
            if kept or (element.kind == "shared" and element in resident):
                assert self.contents.held[place] == element


def grow(life: Life) -> None:
    request = life.some(ACTIVE)
    life.slots.grow(request, request.capacity + 7, request.capacity)


def suspended_first(life: Life) -> None:
    for request in life.slots.requests:
        if request.state.value == ACTIVE:
            life.slots.suspend(request, backup=True)


def evicted_first(life: Life) -> None:
    suspended_first(life)
    life.slots.evict_all()


def fewer(life: Life) -> None:
    life.slots.set_counts([max(1, count * 2 // 3) for count in life.usable])


OPERATIONS: Final[dict[str, tuple[Operation | None, Operation]]] = {
    "allocate": (None, lambda life: life.slots.allocate(17, 9)),
    "allocate a member": (None, lambda life: life.slots.allocate(17, 2, prefix=life.prompt)),
    "allocate, evicting": (suspended_first, lambda life: life.slots.allocate(40, 12, prefix=life.prompt)),
    "grow": (None, grow),
    "suspend": (None, lambda life: life.slots.suspend(life.some(ACTIVE), backup=True)),
    "resume": (suspended_first, lambda life: life.slots.resume(life.some(SUSPENDED))),
    "resume an evicted one": (evicted_first, lambda life: life.slots.resume(life.some(EVICTED))),
    "free": (None, lambda life: life.slots.free(life.some(ACTIVE))),
    "free a suspended one": (suspended_first, lambda life: life.slots.free(life.some(SUSPENDED))),
    "dummy": (suspended_first, lambda life: life.slots.dummy(5, 3, count=3)),
    "evict all": (suspended_first, lambda life: life.slots.evict_all(backup=True)),
    "fewer slots": (suspended_first, fewer),
    "more slots": (None, lambda life: life.slots.set_counts([count + 9 for count in life.usable])),
}


def lived(seed: int, before: Operation | None) -> Life:
    life = Life(seed)
    if before is not None:
        before(life)
        life.write()
    life.random = Random(seed)
    return life


def can(operation: Operation, life: Life) -> FineInterrupt | None:
    """How many places an operation has; None where it is refused, so that there is nothing to interrupt."""
    interrupt = FineInterrupt(0)
    try:
        interrupt.during(lambda: operation(life))
    except (SlotsExhausted, StateError):
        return None
    return interrupt


def judge(life: Life, before: dict[int, Fate], after: dict[int, Fate]) -> bool:
    """See that it was done, or not, and say which; those that were evicted for it may be so in any case."""
    now = life.fates
    old = {number: fate for number, fate in now.items() if number in before}
    new = sorted(fate for number, fate in now.items() if number not in before)
    done = (old, new) == (
        {number: fate for number, fate in after.items() if number in before},
        sorted(fate for number, fate in after.items() if number not in before),
    )
    if not done:
        assert new == []
        assert old.keys() == before.keys()
        for number, fate in old.items():
            evicted = fate == after.get(number) and fate[0] == EVICTED
            assert fate == before[number] or evicted
    return done


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_an_interrupted_operation_was_done_or_was_not(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Afterwards it can be asked for again, and everything can be given back."""
    before, operation = OPERATIONS[name]
    random, interrupted = Random(name), 0
    for seed in range(examples(LIVES)):
        life = lived(seed, before)
        was, counts, resident = life.fates, life.slots.counts, set(life.where().values())
        if (places := can(operation, life)) is None:
            continue
        become, others = life.fates, life.slots.counts
        life.where()
        for at in random.sample(range(1, places.seen + 1), min(places.seen, examples(PLACES))):
            life = lived(seed, before)
            assert FineInterrupt(at).during(lambda: operation(life))  # noqa: B023  # called at once
            interrupted += 1
            life.check_contents(resident)
            finished = judge(life, was, become)
            assert life.slots.counts in (counts, others)
            if not finished or life.slots.counts != others:
                life.random = Random(seed)
                with suppress(SlotsExhausted, StateError):
                    operation(life)
                life.check_contents()
            for request in life.slots.requests:
                life.slots.free(request)
            assert [life.slots.free_slots(group) for group in range(len(life.usable))] == list(life.slots.usable)
    record_property("counted: interrupts of slots", interrupted)
    assert interrupted > 50
