"""What slots on plain torch memory have of their own: exact sizes, memory that moves, and torch's refusals."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch

from tests.cache.backing_suite import CAPACITY, LAYOUT, content, fill, of_slot, seen, zero
from tests.fine_host import FINE, FineHostDriver
from tests.helpers import peek, run_python
from vmmcache import (
    ConfigError,
    DriverUnavailable,
    LeaseError,
    OutOfDeviceMemory,
    RegistrationLease,
    StaleSegment,
    StateError,
)
from vmmcache.cache import plain_segments
from vmmcache.cache.plain_backing import PlainBacking
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.planning import Attention, Buffer, CacheLayout

POOLS: Final = PoolMap(LAYOUT, "block-major", FINE)
HUGE: Final = PoolMap(
    CacheLayout(1, [Attention([Buffer("key", 1 << 24)]), Attention([Buffer("key", 8)], window=2)]), "block-major", 1
)
"""Slots of 16 MiB, of which no machine has two thousand million, and small ones."""


@pytest.fixture
def backing() -> Iterator[PlainBacking]:
    backing = PlainBacking(POOLS, CAPACITY)
    yield backing
    backing.close()


# Sizes and addresses --------------------------------------------------------------------------------------------------


def test_sizes_are_exact_and_views_are_of_what_is_there(backing: PlainBacking) -> None:
    """S4: plain torch allocation, exact sizes."""
    backing.commit((5, 4, 3))
    assert backing.physical_bytes == backing.nbytes == sum(POOLS.sizes((5, 4, 3)))
    assert backing.views()["layers.0"]["key"].shape == (5, 4096)
    assert not backing.addresses_stay


def test_a_storage_that_was_resized_is_the_same_to_its_views(backing: PlainBacking) -> None:
    backing.commit((5, 4, 3))
    view = backing.views()["layers.1"]["key"]
    view[4] = 3
    storage = view.untyped_storage()
    backing.sleep()
    assert (storage.nbytes(), storage.data_ptr()) == (0, 0)
    backing.wake()
    assert storage.nbytes() == POOLS.sizes((5, 4, 3))[0]
    assert view.eq(0).all()
    view[2] = 8
    assert peek(view[2].data_ptr(), 4096) == b"\x08" * 4096
    del view, storage


def test_descriptors_are_of_memory_of_the_host(backing: PlainBacking) -> None:
    backing.commit((5, 0, 3))
    views = backing.views()
    for segment in backing.memory.registrable():
        (storage,) = {
            (views[layer][role].untyped_storage().data_ptr(), views[layer][role].untyped_storage().nbytes())
            for layer, places in POOLS.places.items()
            for role, place in places.items()
            if place.segment == segment.segment_index
        }
        assert (segment.base, segment.nbytes) == storage
        assert (segment.device_type, segment.device_id, segment.mem_type) == ("cpu", 0, "DRAM")
        assert (segment.rdma_capable, segment.handle_types, segment.whole) == (None, frozenset(), True)
    assert backing.memory.device == "cpu"
    del views


def test_connectors_may_be_given_another_word_for_the_device() -> None:
    backing = PlainBacking(POOLS, CAPACITY, device_type="rocm")
    backing.commit(1)
    assert {segment.device_type for segment in backing.memory.registrable()} == {"rocm"}
    backing.close()


def test_a_capacity_may_be_any_number(backing: PlainBacking) -> None:
    unbounded = PlainBacking(POOLS, 2**31 - 1)
    unbounded.commit(3)
    assert unbounded.slots == (3, 3, 3)
    unbounded.close()


# Leases ---------------------------------------------------------------------------------------------------------------


def test_what_is_leased_may_not_even_grow_because_it_would_move(backing: PlainBacking) -> None:
    """C3."""
    backing.commit((5, 4, 3))
    memory = backing.memory
    old = memory.registrable()
    with memory.lease(0, "connector"):
        with pytest.raises(LeaseError, match="connector"):
            backing.commit((6, 4, 3))
        backing.commit((5, 4, 4))
        # In the order of addresses, which is torch's; so by number.
        leased, before = (
            next(each for each in entries if each.segment_index == 0) for entries in (memory.registrable(), old)
        )
        assert leased.base == before.base
    backing.commit((6, 4, 4))
    with pytest.raises(StaleSegment):
        memory.check(old[0])


def test_what_stood_still_is_not_stale(backing: PlainBacking) -> None:
    """C4: new segments are no news for those that were there."""
    backing.commit((5, 0, 0))
    old = backing.memory.registrable()
    backing.commit((5, 4, 3))
    for segment in old:
        backing.memory.check(segment)


@pytest.mark.parametrize("remembered", [True, False], ids=["but the lease", "and the lease"])
def test_leased_memory_stays_also_if_everybody_forgets_it(remembered: bool) -> None:
    """C3: nobody would tell the NIC."""
    backing = PlainBacking(POOLS, CAPACITY)
    backing.commit(2)
    fill(backing)
    lease: RegistrationLease | None = backing.memory.lease(0, "connector")
    assert lease is not None
    address, nbytes = lease.address, lease.nbytes
    expected = peek(address, nbytes)
    if not remembered:
        lease = None
    del backing
    gc.collect()
    # Whatever is allocated now does not get that memory.
    others = [torch.full((nbytes,), 0xEE, dtype=torch.uint8) for _ in range(50)]
    assert peek(address, nbytes) == expected
    assert len(others) == 50
    if lease is not None:
        lease.release()
    plain_segments._pinned.clear()


def test_memory_whose_last_lease_is_given_back_goes_when_it_is_forgotten() -> None:
    backing = PlainBacking(POOLS, CAPACITY)
    backing.commit(2)
    first, second = backing.memory.lease(0, "connector"), backing.memory.lease(1, "connector")
    storage = weakref.ref(backing._memory._storages)  # type: ignore[attr-defined]
    del backing
    first.release()
    assert len(plain_segments._pinned) == 1
    second.release()
    del first, second
    gc.collect()
    assert storage() is None


def test_leases_want_a_segment_and_a_name(backing: PlainBacking) -> None:
    backing.commit((0, 1, 1))
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((9, "connector"), "segment"),
        ((2, ""), "owner"),
        ((2, None), "owner"),
        ((2, "connector", "callback"), "on_revoke"),
    ]
    for arguments, what in wrong:
        with pytest.raises(ConfigError, match=what):
            backing.memory.lease(*arguments)
    with pytest.raises(StateError, match="nothing committed"):
        backing.memory.lease(0, "connector")
    with pytest.raises(ConfigError, match="RegistrableSegment"):
        backing.memory.check("segment")  # type: ignore[arg-type]


# Refusals -------------------------------------------------------------------------------------------------------------


def test_without_memory_the_error_has_the_numbers_and_all_is_as_it_was() -> None:
    """S11's wake without memory, and S4's pool that does not fit: real refusals of the allocator."""
    backing = PlainBacking(HUGE, 2**31 - 1)
    backing.commit((1, 5))
    fill(backing)
    there = seen(backing)
    with pytest.raises(OutOfDeviceMemory, match="no room for 16 PiB") as caught:
        backing.commit((1 << 30, 9))
    assert caught.value.requested == 1 << 54
    assert isinstance(caught.value, MemoryError)
    assert (backing.slots, seen(backing) == there) == ((1, 5), True)
    # Without keeping contents the old memory goes back first: what is left is said, and a retry gets there.
    with pytest.raises(OutOfDeviceMemory):
        backing.commit((1 << 30, 9), keep=False)
    assert (backing.state, backing.slots) == ("committed", (0, 0))
    backing.commit((1, 9))
    assert seen(backing) == {(0, 0): zero(backing, 0), **{(1, slot): zero(backing, 1) for slot in range(9)}}
    backing.close()


OPERATIONS: Final[dict[str, Callable[[PlainBacking], object]]] = {
    "growth": lambda backing: backing.commit((9, 8, 5)),
    "growth and shrink": lambda backing: backing.commit((9, 2, 5)),
    "shrink": lambda backing: backing.commit((3, 2, 1)),
    "new contents": lambda backing: backing.commit((9, 2, 5), keep=False),
    "wake": lambda backing: backing.wake(),
}


class Allocator:
    """torch's, which refuses some of what is asked of it. Shrinking to nothing never needs memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = self.count = 0
        self.refuses = range(0)
        real = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, nbytes: int) -> object:
            if nbytes:
                self.count += 1
                if self.count in self.refuses:
                    self.refused += 1
                    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return real(storage, nbytes)

        monkeypatch.setattr(torch.UntypedStorage, "resize_", resize)

    def refuse(self, first: int, times: int) -> None:
        self.refused = self.count = 0
        self.refuses = range(first, first + times)

    def heal(self) -> None:
        self.refuses = range(0)


@pytest.mark.parametrize("times", [1, 1000], ids=["once", "from then on"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_allocation_is_refused_in_turn(name: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch)
    operation = OPERATIONS[name]
    for nth in itertools.count(1):
        backing = PlainBacking(POOLS, CAPACITY)
        backing.commit((5, 4, 3))
        there = fill(backing)
        if name == "wake":
            backing.sleep(backup=True)
        before = backing.slots
        allocator.refuse(nth, times)
        error = refusal(operation, backing)
        allocator.heal()
        assert (error is not None) == bool(allocator.refused)
        if error is not None:
            assert error.requested > 0
            if name == "wake":
                assert (backing.state, backing.physical_bytes) == ("asleep", 0)
            elif name == "growth" and times == 1:
                assert (backing.slots, seen(backing), hasattr(error, "__notes__")) == (before, there, False)
            elif name == "growth":
                # What was grown before stays so, because there was no room to undo it; the error says which.
                grown = sum(after > 0 for after in map(int.__sub__, backing._memory.committed, POOLS.sizes(before)))
                assert len(getattr(error, "__notes__", ())) == grown == nth - 1
            if name not in ("new contents", "wake"):
                assert kept(backing, there)
            operation(backing)
        if name != "new contents":
            assert kept(backing, there)
        assert backing.slots == {"growth": (9, 8, 5), "shrink": (3, 2, 1), "wake": (5, 4, 3)}.get(name, (9, 2, 5))
        backing.close()
        if error is None:
            break
    assert nth > 3


def refusal(operation: Callable[[PlainBacking], object], backing: PlainBacking) -> OutOfDeviceMemory | None:
    try:
        operation(backing)
    except OutOfDeviceMemory as error:
        return error
    return None


def kept(backing: PlainBacking, there: dict[tuple[int, int], tuple[bytes, ...]]) -> bool:
    """Whether slots that were there before have their contents, and new ones are empty."""
    return all(parts == there.get(place, zero(backing, place[0])) for place, parts in seen(backing).items())


def test_a_backup_that_does_not_fit_leaves_everything_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    backing = PlainBacking(POOLS, CAPACITY)
    backing.commit(2)
    there = fill(backing)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", _refuse)
        with pytest.raises(OutOfDeviceMemory):
            backing.sleep(backup=True)
    assert (backing.state, seen(backing)) == ("committed", there)
    backing.close()


def _refuse(*_: object, **__: object) -> torch.Tensor:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def test_other_errors_of_torch_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(DriverUnavailable, match="abacus"):
        PlainBacking(POOLS, CAPACITY, "abacus")
    backing = PlainBacking(POOLS, CAPACITY, "meta")
    assert backing.memory.device == "meta"


def test_without_torch_there_is_no_plain_memory() -> None:
    script = """
        import sys
        sys.modules["torch"] = None
        from vmmcache import DriverUnavailable
        from vmmcache.cache.plain_backing import PlainBacking
        from vmmcache.cache.pools import PoolMap
        from vmmcache.planning import Attention, Buffer, CacheLayout
        pools = PoolMap(CacheLayout(1, [Attention([Buffer("key", 8)])]), "block-major", 1)
        try:
            PlainBacking(pools, 1)
        except DriverUnavailable as error:
            print(error)
    """
    child = run_python(script)
    assert (child.returncode, child.stderr) == (0, "")
    assert "torch is not installed" in child.stdout


def test_a_copy_of_another_group_is_refused_also_where_its_bytes_would_fit() -> None:
    windowed = Attention([Buffer("a", 4), Buffer("b", 2), Buffer("c", 2)], window=2)
    layout = CacheLayout(1, [Attention([Buffer("key", 4)], count=2), windowed])
    pools = PoolMap(layout, "layer-major", 1)
    assert [segment.stride for segment in pools.segments] == [4, 4, 4, 4]
    backing = PlainBacking(pools, 2)
    backing.commit(2)
    copy = backing.read_slots(0, [0])
    with pytest.raises(ConfigError, match="of group 0"):
        backing.write_slots(1, [0], copy)
    backing.close()


def test_backups_of_slots_fit_the_other_kind_of_backing(backing: PlainBacking) -> None:
    """What a suspended request keeps does not depend on where it was."""
    other = VmmBacking(POOLS, CAPACITY, FineHostDriver())
    for each in (backing, other):
        each.commit((4, 0, 0))
        each.write_slots(0, [0, 1], content(each, 0, 2, tag=3))
    copy = other.read_slots(0, [1, 0])
    backing.write_slots(0, [2, 3], copy)
    assert of_slot(backing.read_slots(0, [3]), 0) == of_slot(content(other, 0, 2, tag=3), 0)
    other.close()
