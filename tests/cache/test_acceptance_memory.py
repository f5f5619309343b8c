"""Memory as an engine meets it: neighbours, a second manager, sleep, other sizes. From the contract alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cache.managed import DEMAND, LAYOUT, SETTINGS, Make, on_host, use
from tests.fine_host import FineHostDriver
from vmmcache import (
    ConfigError,
    ExtensibleTensor,
    KVCacheManager,
    MemoryBudget,
    QuotaError,
    SharedDevice,
    SlotsExhausted,
)
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Request
from vmmcache.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib")


def test_resize_to_the_same_to_little_and_to_everything(make: Make) -> None:
    """S15: all or nothing; the size that a report names is one that can be asked for, whoever chose it."""
    for budget in (
        SETTINGS["budget"],
        MemoryBudget(nbytes=6 * MIB),
        MemoryBudget(slots=100),
        MemoryBudget(slots=[90, 40]),
    ):
        with make(budget=budget) as manager:
            report = manager.finalize()
            use(manager)
            before = manager.committed
            for refused, error in ((1, QuotaError), (0, ConfigError), (1 << 60, ConfigError), (True, ConfigError)):
                with pytest.raises(error):
                    manager.resize(refused)
                assert manager.committed == manager.slots.counts == before
            same = manager.resize(report.nbytes)
            assert same.nbytes <= report.nbytes
            assert all(now >= was for now, was in zip(manager.committed, before, strict=True))
            least = sum(group.nbytes for group in manager.plan.groups) // 2
            manager.resize(max(least, manager.plan.min_nbytes))
            use(manager)
            manager.resize(report.nbytes)
            assert manager.committed == tuple(group.slots for group in same.groups)


def test_a_neighbour_that_takes_memory_between_measuring_and_committing() -> None:
    """S14: measured again with what there is; and the report's numbers still add up to what was committed."""

    class Neighbour(FineHostDriver):
        taken: ExtensibleTensor | None = None

        def _create(self, nbytes: int) -> Any:
            if nbytes == MIB and self.taken is None:
                other = ExtensibleTensor(6 * MIB, self)
                self.taken = other
                other.commit(6 * MIB)
            return super()._create(nbytes)

    driver = Neighbour()
    with KVCacheManager(LAYOUT, driver, **SETTINGS) as manager:
        report = manager.finalize()
        assert driver.taken is not None
        assert report.budget is not None
        allowed = report.budget.nbytes - report.others - report.withheld
        assert 0 < report.nbytes <= allowed
        assert allowed - report.nbytes < 4 * driver.granule
        assert report.nbytes <= 10 * MIB
        text = str(report)
        assert ("left aside" in text) == bool(report.withheld)
        use(manager)
        driver.taken.close()


def test_no_slot_is_to_be_had_while_the_final_commit_replaces_what_is_behind_it() -> None:
    """What `finalize` commits is new memory: a slot that another thread got in between would have none behind it."""

    class Asked(FineHostDriver):
        manager: KVCacheManager | None = None
        times = 0

        def _create(self, nbytes: int) -> Any:
            if self.manager is not None:
                self.times += 1
                assert self.manager.slots.usable == (0, 0)
                with pytest.raises(SlotsExhausted):
                    self.manager.slots.allocate(1)
            return super()._create(nbytes)

    driver = Asked()
    with KVCacheManager(LAYOUT, driver, **SETTINGS) as manager:
        manager.ensure(20)
        driver.manager = manager
        manager.finalize()
        driver.manager = None
        assert driver.times > 3
        use(manager)


def test_two_managers_of_which_one_closes_first(make: Make) -> None:
    """S1: each report says what is the other's; what the first gives back, the second can be given."""
    shared = SharedDevice(SETTINGS["budget"])
    small = [Batch([Request(32, 31)])]
    target, draft = (make(shared=shared, budget=None, tag=tag, constraints=small) for tag in ("target", "draft"))
    one, two = target.finalize(), draft.finalize()
    for report in (one, two):
        assert report.budget is not None
        assert 0 <= report.budget.nbytes - report.others - report.nbytes < 4 * report.granule + 64 * KIB
        assert "for other managers of the device" in str(report)
    target.close()
    use(draft)
    draft.sleep()
    draft.wake()
    draft.resize(two.nbytes + one.nbytes // 2)
    use(draft)
    draft.close()


def test_a_manager_that_closes_before_the_other_is_finalized() -> None:
    shared = SharedDevice(SETTINGS["budget"])
    target, draft = (on_host(shared=shared, budget=None, tag=tag) for tag in ("target", "draft"))
    target.finalize()
    target.close()
    report = draft.finalize()
    assert report.others == 0
    assert report.nbytes > 14 * MIB
    draft.close()


def test_a_layout_of_a_million_slots(make: Make) -> None:
    """Slots of one byte in two groups; slots at both ends can be had."""
    layout = CacheLayout(1, [Attention([Buffer("key", 1)]), Attention([Buffer("key", 2)], window=4)])
    arguments = SETTINGS | {"constraints": [], "budget": MemoryBudget(slots=1_000_000), "vmm": make is on_host}
    with KVCacheManager(layout, FineHostDriver() if make is on_host else "host", **arguments) as manager:
        manager.finalize()
        assert manager.committed == (1_000_000, 1_000_000)
        assert manager.slots.longest() == 1_000_000
        (request,) = manager.slots.dummy(history=999_999)
        blocks = request.blocks(0)
        assert sorted(blocks) == list(range(1_000_000))
        views = manager.views()
        assert len(views["layers.0"]["key"]) == 1_000_000
        views["layers.0"]["key"][999_999] = 7
        del views
        manager.slots.suspend(request)
        manager.sleep()
        manager.wake()
        assert manager.slots.resume(request)
        assert request.lost


def test_asleep_with_views_that_somebody_keeps(make: Make) -> None:
    """T7, S11: they are there again after waking, and zero."""
    manager = make()
    manager.finalize()
    views: Any = manager.views()
    key = views["full.0"]["key"]
    shape = key.shape
    key[3] = 9
    for _ in range(3):
        slept = manager.sleep()
        assert slept is not None
        assert slept.released == manager.plan.nbytes
        assert (slept.suspended, slept.lost) == (0, 0)
        manager.wake()
        assert key.shape == shape
        assert int(key[3].sum()) == 0
    del key, views
    manager.close()


def test_sleep_says_whose_contents_are_lost(make: Make) -> None:
    """S11: the call says so."""
    with make() as manager:
        manager.finalize()
        first, second = manager.slots.allocate(40, 40), manager.slots.allocate(40, 40)
        manager.slots.suspend(first)
        manager.slots.suspend(second, backup=True)
        slept = manager.sleep()
        assert slept is not None
        assert (slept.suspended, slept.lost) == (2, 1)
        manager.wake()
        assert manager.slots.resume(second)
        assert (first.lost, second.lost) == (True, False)
        manager.slots.suspend(second)
        slept = manager.sleep(backup=True)
        assert slept is not None
        assert (slept.suspended, slept.lost) == (2, 0)


def test_what_was_declared_lives_on_a_cache_of_the_floors(make: Make) -> None:
    """S8, I13: the smallest cache that finalize accepts takes the declared batch, to its last request resumed."""
    with make(null_block=True) as manager:
        manager.finalize()
        manager.resize(manager.plan.min_nbytes)
        asked = [(one.capacity, one.history_length) for one in DEMAND.requests for _ in range(one.count)]
        requests = [manager.slots.allocate(*lengths) for lengths in asked]
        assert all(0 not in request.blocks(cycle) for request in requests for cycle in (0, 1)), "S13"
        for request in requests:
            manager.slots.suspend(request)
        for request in requests:
            assert manager.slots.resume(request)
