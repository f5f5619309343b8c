"""Misuse and bad luck, as an engine's author would meet them: from the contract alone, on both paths.

Every error is typed and says what helps; afterwards the manager is what it was, and the engine can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cache.managed import DEMAND, FULL, LAYOUT, SETTINGS, light_collections, on_host, on_torch
from tests.fine_host import FineHostDriver
from tests.helpers import usage
from vmmcache import (
    ConfigError,
    ConnectorUnavailable,
    DriverUnavailable,
    ExtensibleTensor,
    KVCacheManager,
    LeaseError,
    MemoryBudget,
    OutOfDeviceMemory,
    PlanError,
    QuotaError,
    SharedDevice,
    SlotsExhausted,
    StateError,
    VmmCacheError,
)
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Request
from vmmcache.units import KIB, MIB

Make = Callable[..., KVCacheManager]

on_both_paths = pytest.mark.parametrize("make", [on_host, on_torch], ids=["measured", "estimated"])


@pytest.fixture(autouse=True)
def _sixteen_mib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with light_collections():
        before = usage()
        yield
        assert usage() == before


def use(manager: KVCacheManager) -> None:
    """What an engine does with a cache that works."""
    request = manager.slots.allocate(64, 40)
    manager.slots.grow(request, 65, 64)
    manager.slots.suspend(request)
    assert manager.slots.resume(request)
    manager.slots.free(request)


@on_both_paths
def test_all_that_is_wrong_in_one_life(make: Make) -> None:
    """Bad input and faults, in the order of an engine's day; every error leaves a manager that goes on."""
    manager = make()
    for early in (manager.wake, manager.sleep, lambda: manager.resize(4 * MIB)):
        with pytest.raises(StateError, match="warming"):
            early()
    with pytest.raises(ConfigError):
        manager.ensure(max(manager.capacity) + 10**6)
    manager.ensure(8)
    warm = manager.slots.dummy(tokens=16)
    with pytest.raises(StateError, match="free those"):
        manager.finalize()
    manager.slots.free(warm[0])
    report = manager.finalize()
    assert report is manager.report
    for late in (manager.finalize, lambda: manager.ensure(4), manager.measure, manager.committable):
        with pytest.raises(StateError, match="ready"):
            late()
    use(manager)

    request = manager.slots.allocate(40, 0)
    with pytest.raises(StateError, match="1 requests that are not suspended"):
        manager.sleep()
    manager.slots.free(request)
    for after in (manager.slots.free, manager.slots.suspend, manager.slots.resume, lambda r: manager.slots.grow(r, 50)):
        with pytest.raises(StateError, match="freed"):
            after(request)
    with pytest.raises(StateError):
        request.blocks(FULL)
    use(manager)

    lease = manager.memory.lease(0, owner="somebody")
    for refused in (manager.sleep, manager.close):
        with pytest.raises(LeaseError, match="somebody"):
            refused()
    assert manager.state == "ready"
    lease.release()
    views: Any = manager.views()
    with pytest.raises(StateError, match="live views"):
        manager.close()
    use(manager)
    manager.sleep()
    for asleep in (manager.views, manager.finalize, lambda: manager.resize(4 * MIB)):
        with pytest.raises(StateError, match="asleep"):
            asleep()
    with pytest.raises(SlotsExhausted):
        manager.slots.allocate(1)
    del views
    manager.wake()
    use(manager)
    manager.close()
    manager.close()
    with pytest.raises(StateError, match="closed"):
        manager.views()


@on_both_paths
@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"connectors": ["nixxl"]}, ConnectorUnavailable, "nixxl.*spelling"),
        ({"connectors": "nixl"}, ConfigError, "several names"),
        ({"constraints": [Batch([Request(1 << 30, 0)])]}, QuotaError, "needed|needs"),
        ({"budget": MemoryBudget(slots=1)}, PlanError, "slots|bytes"),
        ({"budget": MemoryBudget(slots=[40])}, ConfigError, "slots"),
        ({"shared": SharedDevice(), "budget": MemoryBudget(utilization=0.5)}, ConfigError, "shared"),
        ({"pool_ratio": [1.0]}, ConfigError, "pool_ratio"),
        ({"max_util_for_resume": -0.1}, ConfigError, "max_util_for_resume"),
        ({"tag": ""}, ConfigError, "tag"),
        ({"chunk": 0}, ConfigError, "chunk"),
    ],
)
def test_what_cannot_be_is_refused_before_warm_up(
    make: Make, arguments: dict[str, Any], error: type[VmmCacheError], told: str
) -> None:
    """The later an engine hears of it, the more it has done in vain. (Nothing may be left: see the fixture.)"""
    with pytest.raises(error, match=told), make(**arguments) as manager:
        manager.finalize()


@pytest.mark.parametrize("settings", [{"nbytes": MIB, "slots": 3}, {"nbytes": 0}, {"slots": 0}, {"utilization": 0}])
def test_two_sizes_and_no_size(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MemoryBudget(**settings)


def test_vmm_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: insisting is refused with reason and cure; not insisting falls back, and says why."""
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "host")
    with pytest.raises(DriverUnavailable) as caught:
        KVCacheManager(LAYOUT, "host", vmm=True, **SETTINGS)
    assert caught.value.cure
    with KVCacheManager(LAYOUT, "host", **SETTINGS) as manager:
        assert (manager.mode, manager.addresses_stay) == ("estimated", False)
        assert "disabled" in str(manager.fallback_reason)
        assert "disabled" in str(manager.finalize())


@on_both_paths
@pytest.mark.parametrize("memory", ["1", "64KiB", "300KiB"])
def test_a_device_smaller_than_the_floors(make: Make, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: told with what is needed and what there is; and on the estimated path of no quota that nobody has set."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", memory)
    with pytest.raises(QuotaError) as caught:
        make()
    assert caught.value.needed > caught.value.usable
    assert "raise utilization" not in str(caught.value)
    if make is on_torch:
        assert "temporary pool" in str(caught.value)
        assert "margin_floor" in str(caught.value)


@on_both_paths
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


@on_both_paths
def test_finalize_again_after_it_failed(make: Make) -> None:
    """A neighbour leaves too little, and then goes."""
    with make(constraints=[Batch([Request(2048, 2047)])]) as manager:
        manager.ensure(4)
        peak = manager._core.shared
        peak.saw_peak(15 * MIB)
        for _ in range(3):
            with pytest.raises(PlanError) as caught:
                manager.finalize()
            assert "raise utilization above 1" not in str(caught.value)
            assert (manager.state, manager.committed) == ("warming", manager.slots.counts)
        peak.peak = 0
        assert manager.finalize().nbytes > 5 * MIB
        use(manager)


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


@on_both_paths
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


@on_both_paths
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


@on_both_paths
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


@on_both_paths
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


def test_wake_without_memory_and_then_with() -> None:
    driver = FineHostDriver()
    with KVCacheManager(LAYOUT, driver, **SETTINGS) as manager:
        manager.finalize()
        manager.sleep()
        other = ExtensibleTensor(12 * MIB, driver)
        other.commit(12 * MIB)
        for _ in range(2):
            with pytest.raises(OutOfDeviceMemory):
                manager.wake()
            assert (manager.state, driver.memory_info().free) == ("asleep", 4 * MIB)
        other.close()
        manager.wake()
        use(manager)


@on_both_paths
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
