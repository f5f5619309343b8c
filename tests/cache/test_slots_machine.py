"""Random lives of slots, over real memory, against a model of sets (S8, S13, S15)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cache.slot_model import ACTIVE, EVICTED, SUSPENDED, Element, Entry, SlotModel
from tests.cache.slot_support import LAYOUTS, Watch, memory_for
from tests.helpers import examples
from vmmcache import ConfigError, SlotsExhausted, StateError
from vmmcache.cache.slots import Slots

SHARES = ["0.97", "1", "0.5", "0.9", "0", "3"]
LONGEST = 40
MOST = 48


def has(*states: str) -> Callable[[SlotsMachine], bool]:
    return lambda self: any(entry.state in states for entry in self.model.requests.values())


class SlotsMachine(RuleBasedStateMachine):
    """Every operation of `Slots`, in any order."""

    @initialize(
        data=st.data(),
        layout=st.sampled_from(sorted(LAYOUTS)),
        share=st.sampled_from(SHARES),
        null=st.booleans(),
        rewind=st.sampled_from([None, None, 0, 2, 5]),
        mover=st.sampled_from([True, True, False]),
    )
    def begin(self, data: st.DataObject, layout: str, share: str, null: bool, rewind: int | None, mover: bool) -> None:
        chosen = LAYOUTS[layout]
        counts = [data.draw(st.sampled_from([MOST, 36, 24, 12, 6]), label="count") for _ in chosen.groups]
        self.reserved = int(null)
        self.memory = memory_for(chosen, [MOST] * len(counts))
        self.memory.commit(counts)
        self.slots = Slots(
            chosen,
            counts,
            max_util_for_resume=Fraction(share),
            null_block=null,
            scratch_rewind=rewind,
            mover=self.memory if mover else None,
        )
        self.mover = mover
        self.rewind = rewind
        self.model = SlotModel(chosen, [count - self.reserved for count in counts], Fraction(share), rewind)
        self.watch = Watch(self.slots, self.model, self.memory, self.reserved)
        self.share(data.draw(st.sampled_from([16, 12, 7, 0]), label="prompt"))

    # Help ------------------------------------------------------------------------------------------------------------

    def some(self, data: st.DataObject, *states: str) -> int:
        numbers = [n for n, entry in self.model.requests.items() if entry.state in states]
        return data.draw(st.sampled_from(numbers), label="request")

    def before(self) -> set[Element]:
        return self.model.union(ACTIVE, SUSPENDED)

    def lengths(self, data: st.DataObject, capacity: int = 0, history: int = 0) -> tuple[int, int]:
        more = data.draw(st.sampled_from([6, 24, LONGEST]))
        longer = capacity + data.draw(st.integers(0, more))
        further = data.draw(st.sampled_from([history, longer, max(history, longer - 1), (history + longer) // 2]))
        return longer, further

    # Rules -----------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        capacity, history = self.lengths(data)
        prefix = data.draw(st.sampled_from([*self.watch.prefixes, None]), label="prefix")
        self.enter(capacity, history, prefix)

    def enter(self, capacity: int, history: int, prefix: int | None) -> bool:
        shared = None if prefix is None else self.watch.prefixes[prefix]
        there = self.before()
        fits = self.slots.fits(capacity, history, prefix=shared)
        try:
            request = self.slots.allocate(capacity, history, prefix=shared)
        except SlotsExhausted as error:
            assert not fits
            assert error.needed > error.free
            number = 1 + max(self.watch.handles, default=0) + 10_000
            assert not self.model.enter(Entry(number, capacity, history, prefix))
            return False
        assert fits
        entry = Entry(request.number, capacity, history, prefix)
        assert self.model.enter(entry)
        self.watch.handles[request.number] = request
        self.watch.write(self.model.needs(entry) - there)
        return True

    @precondition(lambda self: len(self.watch.prefixes) < 3)
    @rule(tokens=st.integers(0, 16))
    def share(self, tokens: int) -> None:
        prefix = self.slots.share(tokens)
        number = len(self.watch.prefixes) + 1
        self.watch.prefixes[number] = prefix
        self.model.prompts[number] = prefix.tokens // self.slots.layout.tokens_per_block
        assert 0 <= tokens - prefix.tokens < self.slots.layout.tokens_per_block

    @precondition(has(ACTIVE))
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        number = self.some(data, ACTIVE)
        entry = self.model.requests[number]
        self.grow_to(number, *self.lengths(data, entry.capacity, entry.history))

    @precondition(has(ACTIVE))
    @rule(tokens=st.integers(1, 4))
    def decode(self, tokens: int) -> None:
        """A step of everybody."""
        for number, entry in list(self.model.requests.items()):
            if entry.state == ACTIVE:
                self.grow_to(number, entry.capacity + tokens, entry.capacity)

    def grow_to(self, number: int, capacity: int, history: int) -> None:
        entry = self.model.requests[number]
        there = self.before()
        grown = Entry(number, capacity, history, entry.prefix, lost=False)
        if self.took_back_too_much(entry, history):
            with pytest.raises(ConfigError, match="scratch_rewind"):
                self.slots.grow(self.watch.handles[number], capacity, history)
            return
        try:
            self.slots.grow(self.watch.handles[number], capacity, history)
        except SlotsExhausted as error:
            assert error.needed > error.free
            assert not self.model.enter(grown)
            return
        assert self.model.enter(grown)
        self.watch.write(self.model.needs(grown) - there)

    def took_back_too_much(self, entry: Entry, history: int) -> bool:
        """Blocks that only passed, and that hold tokens which are computed now and still seen."""
        planner = self.model.planner
        return history > entry.history and any(
            block < planner.blocks(history) and planner.live(cycle, block, history)
            for place, cycle in enumerate(self.model.cycles)
            for block in self.model.passing(entry, place)
        )

    @precondition(has(ACTIVE))
    @rule(data=st.data(), backup=st.booleans())
    def suspend(self, data: st.DataObject, backup: bool) -> None:
        number = self.some(data, ACTIVE)
        self.slots.suspend(self.watch.handles[number], backup=backup and self.mover)
        self.model.suspend(number, backup and self.mover)

    @precondition(has(SUSPENDED, EVICTED))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.resume_one(self.some(data, SUSPENDED, EVICTED))

    @precondition(has(ACTIVE))
    @rule(data=st.data(), backup=st.booleans())
    def take_turns(self, data: st.DataObject, backup: bool) -> None:
        """Whoever runs waits, and whoever waits runs, as far as there is room."""
        for number, entry in self.model.requests.items():
            if entry.state == ACTIVE:
                self.slots.suspend(self.watch.handles[number], backup=backup and self.mover)
                self.model.suspend(number, backup and self.mover)
        for number in data.draw(st.permutations(sorted(self.model.requests)), label="order"):
            self.resume_one(number)

    def resume_one(self, number: int) -> None:
        entry = self.model.requests[number]
        there = self.before()
        was, restored = entry.state, entry.backup
        resumed = self.slots.resume(self.watch.handles[number])
        assert self.model.resume(number) is resumed
        if resumed and was == EVICTED:
            fresh = self.model.needs(entry) - there
            end = self.model.planner.blocks(entry.capacity)
            back = {e for e in fresh if restored and (e.kind == "own" or e.block < end)}
            self.watch.read(back)
            self.watch.write(fresh - back)

    @precondition(has(ACTIVE, SUSPENDED, EVICTED))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        number = self.some(data, ACTIVE, SUSPENDED, EVICTED)
        request = self.watch.handles.pop(number)
        self.slots.free(request)
        self.model.free(number)
        with pytest.raises(StateError):
            self.slots.free(request)

    @rule(history=st.integers(0, 9), tokens=st.integers(0, 3), draft=st.integers(0, 2), count=st.integers(1, 3))
    def dummy(self, history: int, tokens: int, draft: int, count: int) -> None:
        there = self.before()
        entries = [Entry(20_000 + place, history + tokens + draft, history) for place in range(count)]
        together = set().union(*map(self.model.needs, entries))
        try:
            made = self.slots.dummy(history, tokens, draft=draft, count=count)
        except SlotsExhausted:
            assert not self.model.within(self.model.union(ACTIVE) | together)
            return
        active = self.model.union(ACTIVE) | together
        assert self.model.within(active)
        self.model.evict_until(active, together)
        for request in made:
            entry = Entry(request.number, request.capacity, request.history_length)
            assert (entry.capacity, entry.history) == (history + tokens + draft, history)
            assert self.model.enter(entry)
            self.watch.handles[request.number] = request
            self.watch.write(self.model.needs(entry) - there)

    @precondition(has(SUSPENDED))
    @rule(backup=st.booleans())
    def evict_all(self, backup: bool) -> None:
        assert self.slots.evict_all(backup and self.mover) == len(self.model.order)
        for number in list(self.model.order):
            self.model.evict(number, backup and self.mover)

    @rule(data=st.data())
    def set_counts(self, data: st.DataObject) -> None:
        old = self.slots.counts
        counts = [data.draw(st.integers(max(0, count - 12), min(MOST, count + 12)), label="count") for count in old]
        beyond = {
            (group, slot)
            for element, slot in self.watch.where().items()
            if slot >= counts[group := self.model.group_of[element.cycle]] and element in self.model.union(ACTIVE)
        }
        self.memory.commit(list(map(max, old, counts)))
        if beyond:
            with pytest.raises(StateError, match=rf"^{len(beyond)} slots "):
                self.slots.set_counts(counts)
            self.memory.commit(list(old))
            return
        doomed = [n for n in self.model.order if self.has_beyond(n, counts)] if not self.mover else []
        self.slots.set_counts(counts)
        self.memory.commit(counts)
        self.model.usable = [max(0, count - self.reserved) for count in counts]
        for number in doomed:
            self.model.evict(number)
        self.model.evict_until(self.model.union(ACTIVE), set())
        assert self.slots.counts == tuple(counts)

    def has_beyond(self, number: int, counts: list[int]) -> bool:
        needs = self.model.needs(self.model.requests[number])
        return any(
            slot >= counts[self.model.group_of[element.cycle]]
            for element, slot in self.watch.where().items()
            if element in needs
        )

    @rule(data=st.data())
    def longest_really_fits(self, data: st.DataObject) -> None:
        upper = data.draw(st.sampled_from([1 << 40, LONGEST]))
        longest = self.slots.longest(upper=upper)
        t = self.slots.layout.tokens_per_block
        for capacity in range(1, min(longest, LONGEST) + 1):
            assert self.slots.fits(capacity, capacity - 1)
        if longest < upper:
            assert longest % t == 0
            assert not self.slots.fits(longest + 1, longest)
        if 0 < longest <= 2 * LONGEST:
            assert self.enter(longest, longest - 1, None)

    @precondition(has(ACTIVE, SUSPENDED, EVICTED))
    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        number = self.some(data, ACTIVE, SUSPENDED, EVICTED)
        request = self.watch.handles[number]
        if request.state.value == ACTIVE:
            with pytest.raises(StateError):
                self.slots.resume(request)
        else:
            with pytest.raises(StateError):
                self.slots.grow(request, LONGEST * 9)
            with pytest.raises(StateError):
                self.slots.suspend(request)

    @invariant()
    @precondition(lambda self: hasattr(self, "watch"))
    def everything_is_as_the_model_says(self) -> None:
        found = self.watch.check()
        self.watch.read(found)


TestSlotsMachine = pytest.mark.timeout(300)(SlotsMachine.TestCase)
TestSlotsMachine.settings = settings(
    max_examples=examples(80),
    stateful_step_count=40,
    # Without explaining, which takes minutes under Python 3.11.
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
)
