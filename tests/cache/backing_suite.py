"""What every backing has to do, wherever its memory comes from: a suite, and a life that a model checks.

Contents are seen through `read_slots`, so that the suite runs where torch cannot open the device, too; where it can,
views have to show the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import strategies as st

from vmmcache import ConfigError, LeaseError, RegistrationLease, StaleSegment, StateError
from vmmcache.cache.backing import Backing
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.slot_contents import SlotCopy
from vmmcache.planning import Attention, Buffer, CacheLayout, Ssm
from vmmcache.planning.layout import Arrangement

CAPACITY = (40, 24, 5)

LAYOUT = CacheLayout(
    32,
    [
        Attention([Buffer("key", 4096), Buffer("value", 4096), Buffer("scale", 16, 8)], count=2),
        Attention([Buffer("key", 8192), Buffer("value", 4096)], window=64, name="windowed"),
        Ssm([Buffer("state", 1000), Buffer("conv", 24)], name="ssm", count=2),
    ],
)
"""Three groups. Slots of 16384 and 128 bytes; of 8192 and 4096; of 2000 and 48."""

Make = Callable[[PoolMap, tuple[int, ...]], Backing]


def content(backing: Backing, group: int, slots: int, tag: int) -> SlotCopy:
    """Bytes that are others for every tag, slot and segment, and never zero."""
    chance = random.Random(tag * 1000 + group)
    parts = []
    for index in backing.pools.groups[group]:
        stride = backing.pools.segments[index].stride
        pieces = (bytes((1 + chance.randrange(250),)) * (stride - 1) + b"\xff" for _ in range(slots))
        parts.append(bytearray().join(pieces))
    return SlotCopy(group, slots, tuple(parts))


def of_slot(copy: SlotCopy, place: int) -> tuple[bytes, ...]:
    """One slot of several, its bytes in each segment."""
    return tuple(
        bytes(part[place * (len(part) // copy.count) : (place + 1) * (len(part) // copy.count)]) for part in copy.parts
    )


def fill(backing: Backing, tag: int = 1) -> dict[tuple[int, int], tuple[bytes, ...]]:
    """Write every slot that is backed; what is where then."""
    there = {}
    for group, slots in enumerate(backing.slots):
        if slots:
            copy = content(backing, group, slots, tag)
            backing.write_slots(group, range(slots), copy)
            there.update({(group, slot): of_slot(copy, slot) for slot in range(slots)})
    return there


def seen(backing: Backing) -> dict[tuple[int, int], tuple[bytes, ...]]:
    """What is in every slot that is backed."""
    there = {}
    for group, slots in enumerate(backing.slots):
        copy = backing.read_slots(group, range(slots))
        there.update({(group, slot): of_slot(copy, slot) for slot in range(slots)})
    return there


def zero(backing: Backing, group: int) -> tuple[bytes, ...]:
    """An empty slot."""
    return tuple(bytes(backing.pools.segments[index].stride) for index in backing.pools.groups[group])


# A life ---------------------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """A backing and what has to be in it. Shares no code with it: slots are a dict."""

    backing: Backing
    counts: tuple[int, ...] = (0, 0, 0)
    there: dict[tuple[int, int], tuple[bytes, ...]] = field(default_factory=dict)
    asleep: bool = False
    backup: bool = False
    tag: int = 1

    def step(self, data: st.DataObject) -> None:
        """One operation that is allowed now, and a look at everything."""
        moves: list[Callable[[st.DataObject], None]] = [self.wake] if self.asleep else [self.commit, self.commit]
        if not self.asleep:
            moves += [self.write, self.move] if any(self.counts) else []
        data.draw(st.sampled_from([*moves, self.sleep]))(data)
        self.look()

    def look(self) -> None:
        backing = self.backing
        now = (0, 0, 0) if self.asleep else self.counts
        assert backing.slots == now
        assert backing.nbytes == sum(backing.pools.sizes(now)) <= backing.physical_bytes
        assert seen(backing) == self.there if not self.asleep else True

    def commit(self, data: st.DataObject) -> None:
        counts = tuple(data.draw(st.integers(0, most)) for most in self.backing.capacity)
        defragment, keep = data.draw(st.booleans()), data.draw(st.sampled_from([True, True, False]))
        self.backing.commit(counts, defragment=defragment, keep=keep)
        if defragment and self.backing.addresses_stay:
            assert self.backing.physical_bytes == self.backing.pools.footprint(counts)
        if not keep:
            # Contents are there still, or are zero; which is not promised.
            now = seen(self.backing)
            for place, parts in now.items():
                empty = zero(self.backing, place[0])
                before = self.there.get(place, empty)
                assert all(part in pair for part, *pair in zip(parts, before, empty, strict=True))
            self.there = now
        self.there = {
            (group, slot): self.there.get((group, slot), zero(self.backing, group))
            for group, count in enumerate(counts)
            for slot in range(count)
        }
        self.counts = counts

    def write(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from([group for group, count in enumerate(self.counts) if count]))
        slots = data.draw(st.lists(st.integers(0, self.counts[group] - 1), unique=True))
        self.tag += 1
        copy = content(self.backing, group, len(slots), self.tag)
        self.backing.write_slots(group, slots, copy)
        self.there.update({(group, slot): of_slot(copy, place) for place, slot in enumerate(slots)})

    def move(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from([group for group, count in enumerate(self.counts) if count]))
        order = data.draw(st.permutations(range(self.counts[group])))
        # From later to earlier of some order: chains, and no circle.
        pairs = [
            (order[data.draw(st.integers(place + 1, len(order) - 1))], order[place])
            for place in range(len(order) - 1)
            if data.draw(st.booleans())
        ]
        before = dict(self.there)
        self.backing.move_slots(group, data.draw(st.permutations(pairs)))
        self.there.update({(group, target): before[group, source] for source, target in pairs})

    def sleep(self, data: st.DataObject) -> None:
        backup = data.draw(st.booleans())
        self.backing.sleep(backup=backup)
        if not self.asleep:
            self.backup = backup
        self.asleep = True
        assert (self.backing.state, self.backing.physical_bytes) == ("asleep", 0)

    def wake(self, data: st.DataObject) -> None:
        self.backing.wake()
        self.asleep = False
        if not self.backup:
            self.there = {place: zero(self.backing, place[0]) for place in self.there}


# The suite ------------------------------------------------------------------------------------------------------------


class BackingConformance:
    """Tests of every backing. Subclasses say how one is made."""

    granule: ClassVar[int]

    def make(self, pools: PoolMap, capacity: tuple[int, ...]) -> Backing:
        raise NotImplementedError

    @pytest.fixture(params=["block-major", "layer-major"])
    def backing(self, request: pytest.FixtureRequest) -> Any:
        arrangement: Arrangement = request.param
        backing = self.make(PoolMap(LAYOUT, arrangement, self.granule), CAPACITY)
        yield backing
        backing.close()
        backing.close()
        assert (backing.state, backing.physical_bytes, backing.slots) == ("closed", 0, (0, 0, 0))

    # Memory -----------------------------------------------------------------------------------------------------------

    def test_at_first_there_are_no_slots(self, backing: Backing) -> None:
        assert (backing.state, backing.slots, backing.capacity) == ("reserved", (0, 0, 0), CAPACITY)
        assert (backing.nbytes, backing.physical_bytes) == (0, 0)
        assert len(backing.memory.segment_sizes) == len(backing.pools.segments)
        assert backing.read_slots(0, []).nbytes == 0

    def test_new_slots_are_zero_and_old_ones_keep_their_contents(self, backing: Backing) -> None:
        backing.commit((3, 2, 1))
        assert backing.slots == (3, 2, 1)
        assert backing.nbytes == sum(backing.pools.sizes((3, 2, 1)))
        there = fill(backing)
        backing.commit((7, 1, 4))
        expected = {
            (group, slot): there.get((group, slot), zero(backing, group))
            for group, count in enumerate((7, 1, 4))
            for slot in range(count)
        }
        assert seen(backing) == expected
        # A slot that was cut off comes back empty (I7).
        backing.commit((7, 2, 4))
        assert seen(backing) == {**expected, (1, 1): zero(backing, 1)}
        backing.commit(0)
        assert (backing.slots, backing.nbytes) == ((0, 0, 0), 0)

    def test_a_commit_of_wrong_counts_changes_nothing(self, backing: Backing) -> None:
        backing.commit(1)
        there = fill(backing)
        for wrong in ([1, 1], [1, 1, 6], -1, [1, 1, None], 41):
            with pytest.raises(ConfigError, match="slots"):
                backing.commit(wrong)  # type: ignore[arg-type]
        assert seen(backing) == there

    @pytest.mark.parametrize("backup", [False, True])
    def test_asleep_nothing_is_held_and_awake_the_same_slots_are_back(self, backing: Backing, backup: bool) -> None:
        """S11."""
        backing.commit((5, 3, 2))
        there = fill(backing)
        for _ in range(2):
            backing.sleep(backup=backup)
            assert (backing.state, backing.slots, backing.physical_bytes) == ("asleep", (0, 0, 0), 0)
            backing.sleep()
            backing.wake()
            assert (backing.state, backing.slots) == ("committed", (5, 3, 2))
            empty = {place: zero(backing, place[0]) for place in there}
            assert seen(backing) == (there if backup else empty)
        backing.commit(1)
        assert backing.slots == (1, 1, 1)

    def test_what_its_state_does_not_allow_is_refused(self, backing: Backing) -> None:
        with pytest.raises(StateError, match=r"restore\(\)"):
            backing.wake()
        backing.commit(2)
        with pytest.raises(StateError, match=r"restore\(\)"):
            backing.wake()
        copy = backing.read_slots(0, [0])
        backing.sleep()
        operations: list[Callable[[], object]] = [
            lambda: backing.commit(3),
            lambda: backing.memory.lease(0, "connector"),
            lambda: backing._memory.read([]),
            lambda: backing._memory.write([]),
            lambda: backing._memory.copy([]),
        ]
        for operation in operations:
            with pytest.raises(StateError, match=r"restore\(\) first") as caught:
                operation()
            assert caught.value.state == "asleep"
        with pytest.raises(ConfigError):
            backing.write_slots(0, [0], copy)
        backing.close()
        for operation in (*operations, backing.sleep, backing.wake, backing.memory.registrable):
            with pytest.raises(StateError, match="make a new one") as caught:
                operation()
            assert caught.value.state == "closed"

    # Contents ---------------------------------------------------------------------------------------------------------

    def test_slots_move_with_all_that_is_in_them_also_along_a_chain(self, backing: Backing) -> None:
        backing.commit((8, 4, 3))
        there = fill(backing)
        backing.move_slots(0, [(7, 5), (5, 2), (6, 3), (0, 0)])
        expected = {**there, (0, 5): there[0, 7], (0, 2): there[0, 5], (0, 3): there[0, 6]}
        assert seen(backing) == expected
        backing.move_slots(0, [])
        backing.move_slots(2, iter([(2, 0)]))
        assert seen(backing) == {**expected, (2, 0): there[2, 2]}

    def test_slots_are_read_and_written_in_the_order_given(self, backing: Backing) -> None:
        backing.commit((8, 4, 3))
        there = fill(backing)
        copy = backing.read_slots(0, [5, 1, 2, 1])
        assert copy.nbytes == 4 * sum(map(len, zero(backing, 0)))
        assert [of_slot(copy, place) for place in range(4)] == [there[0, slot] for slot in (5, 1, 2, 1)]
        backing.write_slots(0, [0, 6, 7, 3], copy)
        assert seen(backing) == {
            **there,
            **{(0, target): there[0, source] for target, source in zip((0, 6, 7, 3), (5, 1, 2, 1), strict=True)},
        }

    def test_slots_that_are_not_there_are_not_touched(self, backing: Backing) -> None:
        backing.commit((4, 4, 1))
        there = fill(backing)
        copy = backing.read_slots(0, [0, 1])
        other = backing.read_slots(1, [0, 1])
        wrong: list[Callable[[], object]] = [
            lambda: backing.read_slots(0, [4]),
            lambda: backing.read_slots(0, [-1]),
            lambda: backing.read_slots(3, [0]),
            lambda: backing.read_slots(-1, [0]),
            lambda: backing.move_slots(0, [(0, 4)]),
            lambda: backing.move_slots(0, [(4, 0)]),
            lambda: backing.move_slots(0, [(0, 1), (1, 0)]),
            lambda: backing.move_slots(0, [(0, 1), (2, 1)]),
            lambda: backing.write_slots(0, [1, 1], copy),
            lambda: backing.write_slots(0, [1], copy),
            lambda: backing.write_slots(0, [3, 4], copy),
            lambda: backing.write_slots(0, [0, 1], other),
            lambda: backing.write_slots(1, [0, 1], SlotCopy(1, 2, copy.parts)),
        ]
        for operation in wrong:
            with pytest.raises(ConfigError):
                operation()
        assert seen(backing) == there

    # Connectors -------------------------------------------------------------------------------------------------------

    def test_descriptors_are_the_committed_bytes_and_no_others(self, backing: Backing) -> None:
        """C1."""
        counts = (5, 0, 3)
        backing.commit(counts)
        memory = backing.memory
        described: dict[int, int] = {}
        for segment in memory.registrable():
            assert segment.single_allocation
            assert segment.logical_offset == described.get(segment.segment_index, 0)
            assert segment.allocation_offset + segment.nbytes <= segment.allocation_nbytes
            assert segment.aligned == (segment.base % self.granule == 0 and segment.nbytes % self.granule == 0)
            described[segment.segment_index] = segment.logical_offset + segment.nbytes
            memory.check(segment)
        sizes = backing.pools.sizes(counts)
        assert described == {index: size for index, size in enumerate(sizes) if size}

    def test_what_is_leased_does_not_go_away(self, backing: Backing) -> None:
        """C3."""
        backing.commit((5, 4, 3))
        there = fill(backing)
        lease = backing.memory.lease(0, "connector")
        old = backing.memory.registrable()
        refused: list[Callable[[], object]] = [
            lambda: backing.commit((4, 4, 3)),
            lambda: backing.commit(0, defragment=True),
            lambda: backing.commit(0, keep=False),
            backing.sleep,
            backing.close,
            lambda: backing.sleep(revoke=True),
            lambda: backing.close(revoke=True),
        ]
        for operation in refused:
            with pytest.raises(LeaseError, match="connector") as caught:
                operation()
            assert caught.value.owners == ("connector",)
        assert seen(backing) == there
        assert backing.slots == (5, 4, 3)
        for segment in old:
            backing.memory.check(segment)
        # Other groups may change meanwhile.
        backing.commit((5, 2, 5))
        assert backing.slots == (5, 2, 5)
        assert lease.valid
        lease.release()
        backing.commit((4, 4, 3))

    def test_owners_are_made_to_let_go(self, backing: Backing) -> None:
        backing.commit((5, 4, 3))
        told: list[RegistrationLease] = []
        operations: list[Callable[[], object]] = [
            lambda: backing.commit((4, 4, 3), revoke=True),
            lambda: backing.sleep(revoke=True),
            lambda: backing.close(revoke=True),
        ]
        for number, operation in enumerate(operations):
            if backing.state == "asleep":
                backing.wake()
            lease = backing.memory.lease(0, "connector", told.append)
            operation()
            assert not lease.valid
            assert len(told) == number + 1

    def test_descriptors_are_stale_after_memory_went_away(self, backing: Backing) -> None:
        """C4."""
        backing.commit((5, 4, 3))
        memory = backing.memory
        old = memory.registrable()[0]
        memory.check(old)
        backing.sleep()
        with pytest.raises(StaleSegment, match="registrable"):
            memory.check(old)
        backing.wake()
        with pytest.raises(StaleSegment, match="registrable"):
            memory.check(old)
        new = memory.registrable()[0]
        memory.check(new)
        assert new.allocation_id != old.allocation_id
        assert new.generation > old.generation
        backing.commit((4, 4, 3))
        assert memory.registrable()[0].generation > new.generation
        with pytest.raises(StaleSegment, match="registrable"):
            memory.check(new)


class VisibleBackingConformance(BackingConformance):
    """And of those whose device torch can open."""

    def test_views_show_what_slots_hold(self, backing: Backing) -> None:
        backing.commit((5, 4, 3))
        fill(backing)
        views = backing.views(exact=True)
        assert list(views) == ["layers.0", "layers.1", "windowed", "ssm.0", "ssm.1"]
        for layer, places in backing.pools.places.items():
            for role, place in places.items():
                view = views[layer][role]
                assert view.shape == (backing.slots[place.group], *place.shape)
                before = backing.read_slots(place.group, range(len(view)))
                part = backing.pools.groups[place.group].index(place.segment)
                for slot in range(len(view)):
                    bytes_ = of_slot(before, slot)[part][place.offset : place.offset + place.nbytes]
                    assert bytes(view[slot].flatten().tolist()) == bytes_
                view[1] = 7
                after = backing.read_slots(place.group, [1]).parts[part]
                assert after[place.offset : place.offset + place.nbytes] == b"\x07" * place.nbytes
        del view, views

    def test_exact_storages_are_the_committed_bytes_of_their_segments(self, backing: Backing) -> None:
        """I6, and that views of one segment share a storage: a connector sees each byte once."""
        backing.commit((5, 0, 3))
        views = backing.views(exact=True)
        storages: dict[int, set[tuple[int, int]]] = {}
        for layer, places in backing.pools.places.items():
            for role, place in places.items():
                storage = views[layer][role].untyped_storage()
                storages.setdefault(place.segment, set()).add((storage.data_ptr(), storage.nbytes()))
                del storage
        sizes = backing.pools.sizes((5, 0, 3))
        assert [len(same) for same in storages.values()] == [1] * len(sizes)
        assert [nbytes for _, ((_, nbytes),) in sorted(storages.items())] == sizes
        del views

    def test_views_live_through_growth_sleep_and_wake(self, backing: Backing) -> None:
        backing.commit((5, 4, 3))
        view = backing.views(exact=True)["layers.1"]["value"]
        view[3] = 9
        backing.commit((9, 4, 3))
        backing.sleep(backup=True)
        backing.wake()
        assert view[3].eq(9).all()
        view[4] = 8
        place = backing.pools.places["layers.1"]["value"]
        parts = backing.read_slots(0, [4]).parts
        part = parts[backing.pools.groups[0].index(place.segment)]
        assert part[place.offset : place.offset + place.nbytes] == b"\x08" * place.nbytes
        del view

    def test_a_view_of_a_type_has_the_shape_asked_for(self, backing: Backing) -> None:
        backing.commit((5, 4, 3))
        key = backing.view("layers.1", "key", torch.bfloat16, (32, 4, 16), exact=True)
        assert (key.shape, key.dtype) == ((5, 32, 4, 16), torch.bfloat16)
        key[2, 3, 1] = 1.5
        assert backing.view("layers.1", "key", torch.bfloat16, exact=True)[2].eq(1.5).sum() == 16
        assert backing.view("layers.1", "scale", exact=True).shape == (5, 4, 16)
        assert backing.view("layers.1", "scale", torch.float32, exact=True).shape == (5, 4, 4)
        assert backing.view("layers.1", "scale", shape=(64,), exact=True).shape == (5, 64)
        wrong: list[tuple[tuple[Any, ...], str]] = [
            (("layers.9", "key"), "no such buffer"),
            (("layers.1", "query"), "no such buffer"),
            (("layers.1", "key", torch.bfloat16, (32, 4, 17)), "shape"),
            (("layers.1", "key", torch.bfloat16, (32, 4, 15)), "shape"),
            (("layers.1", "key", None, (1.5,)), "shape"),
            (("ssm.1", "state", torch.complex128), "dtype"),
        ]
        for arguments, what in wrong:
            with pytest.raises(ConfigError, match=what):
                backing.view(*arguments, exact=True)
        del key

    def test_close_with_live_views_says_how_many(self, backing: Backing) -> None:
        backing.commit(2)
        there = fill(backing)
        views = backing.views(exact=True)
        for _ in range(2):
            with pytest.raises(StateError, match=r"[1-9]\d* live views"):
                backing.close()
        assert backing.state == "committed"
        del views
        assert seen(backing) == there
