"""The example's scheduler over real slots and memory that remembers who wrote it: S8, under whatever load."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.scheduler import Scheduler, Turn
from tinyllm.shape import KINDS, Kind, ModelShape
from tinyllm.workload import LONGEST, Request
from vmmcache import Slots, SlotsExhausted

SHAPE = ModelShape()
LAYOUT = SHAPE.layout()
CYCLES = {kind: SHAPE.cycle(LAYOUT, kind) for kind in KINDS}
GROUPS = {kind: LAYOUT.life_cycles[CYCLES[kind]].group for kind in KINDS}
CHUNK = 128
# What one of the longest requests takes, with a chunk of its prompt before any of it has left the window; and slot 0.
LEAST = {"full": -(-LONGEST // 16) + 1, "window": CHUNK // 16 + 1, "state": 2}

BEYOND = {"full": 40, "window": 16, "state": 8}

Entry = tuple[int, int, int]
"""Whose, which block, and how many of the request's tokens it has seen."""


class Memory:
    """What each slot holds: the mover of `Slots`, and the model of what a runner reads and writes."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], Entry | None] = {}

    def move_slots(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        self.held |= {(group, target): self.held.get((group, source)) for source, target in pairs}

    def read_slots(self, group: int, slots: Sequence[int]) -> list[Entry | None]:
        return [self.held.get((group, slot)) for slot in slots]

    def write_slots(self, group: int, slots: Sequence[int], copy: list[Entry | None]) -> None:
        self.held |= {(group, slot): entry for slot, entry in zip(slots, copy, strict=True)}

    def run(self, turn: Turn, kind: Kind, blocks: Sequence[int]) -> None:
        """See that all that a turn reads is the request's own and complete, then write what the turn adds."""
        number, group = turn.session.request.number, GROUPS[kind]
        if kind == "state":
            assert turn.start == 0 or self.held[group, blocks[0]] == (number, 0, turn.start)
            self.held[group, blocks[0]] = (number, 0, turn.stop)
            return
        first = max(0, turn.start + 1 - SHAPE.window) // 16 if kind == "window" else 0
        for ordinal in range(first, -(-turn.stop // 16)):
            slot, begin = blocks[ordinal], ordinal * 16
            assert slot > 0
            if begin < turn.start:
                assert self.held[group, slot] == (number, ordinal, min(turn.start, begin + 16))
            self.held[group, slot] = (number, ordinal, min(turn.stop, begin + 16))


def scheduler_of(memory: Memory, counts: dict[str, int], max_batch: int = 32) -> Scheduler:
    by_group = {GROUPS[kind]: counts[kind] for kind in KINDS}
    slots = Slots(LAYOUT, [by_group[group] for group in range(len(by_group))], null_block=True, mover=memory)
    return Scheduler(slots, CYCLES, max_batch, CHUNK)


lengths = st.tuples(st.integers(1, 112), st.integers(1, 48))


@settings(max_examples=60)
@given(
    load=st.lists(lengths, min_size=1, max_size=24),
    beyond=st.fixed_dictionaries(
        {"full": st.integers(0, 40), "window": st.integers(0, 16), "state": st.integers(0, 8)}
    ),
    max_batch=st.integers(1, 16),
    naps=st.sets(st.integers(0, 60), max_size=2),
)
def test_every_request_finishes_and_reads_only_what_it_wrote(
    load: list[tuple[int, int]], beyond: dict[str, int], max_batch: int, naps: set[int]
) -> None:
    memory = Memory()
    scheduler = scheduler_of(memory, {kind: LEAST[kind] + beyond[kind] for kind in KINDS}, max_batch)
    scheduler.submit(Request(number, tuple(range(prompt)), answer) for number, (prompt, answer) in enumerate(load))
    while scheduler.busy:
        if scheduler.counts.steps in naps:
            scheduler.suspend_all()
            scheduler.slots.evict_all()
        turns = scheduler.schedule()
        assert turns
        assert sum(turn.stop - turn.start for turn in turns) <= CHUNK
        for turn in turns:
            blocks = scheduler.blocks(turn.session)
            for kind in KINDS:
                memory.run(turn, kind, blocks[kind])
        for turn in turns:
            scheduler.done(turn, 1000 + turn.stop)
    # What follows from the tokens before is what it would have been alone.
    assert scheduler.answers == {
        number: [1000 + prompt + place for place in range(answer)] for number, (prompt, answer) in enumerate(load)
    }
    counts = scheduler.counts
    assert counts.suspended == counts.resumed
    assert counts.restored + counts.started_over <= counts.resumed
    assert scheduler.slots.requests == ()


def drive(scheduler: Scheduler) -> None:
    while scheduler.busy:
        for turn in scheduler.schedule():
            scheduler.done(turn, 0)


# A prompt of 112 tokens has one block less in the window than the chunk that is the least.
@pytest.mark.parametrize(("kind", "short"), [("full", 1), ("window", 2)])
def test_a_request_that_does_not_fit_alone_is_an_error_and_not_a_wait(kind: Kind, short: int) -> None:
    scheduler = scheduler_of(Memory(), {**LEAST, kind: LEAST[kind] - short})
    scheduler.submit([Request(0, tuple(range(112)), 48), Request(1, tuple(range(112)), 48)])
    with pytest.raises(SlotsExhausted):
        drive(scheduler)
