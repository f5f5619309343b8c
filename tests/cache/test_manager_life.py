"""The life of a manager on the host, on both paths: the engine's calls are the same, and so is what they lead to."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tests.cache.managed import (
    DEMAND,
    FULL,
    WINDOWED,
    Make,
    live_to_the_last,
    mark,
    marks,
    on_host,
    on_torch,
    with_driver,
)
from tests.fine_host import FINE, FineHostDriver, KeepingDriver, UniformDriver
from vmmcache import ExtensibleTensor, MemoryBudget, VmmDriver, host_memory, wrap_slots
from vmmcache.cache.requests import RequestState
from vmmcache.planning import Batch, ConstraintPolicy, EngineLimits, PlanWarning, Request
from vmmcache.units import GIB, MIB, align_down

pytestmark = pytest.mark.usefixtures("sixteen_mib")


def test_an_engine_never_asks_on_which_path_it_is(make: Make) -> None:
    """The whole life; what differs is what `addresses_stay` says."""
    with make(limits=EngineLimits(64, 128)) as manager:
        assert manager.state == "warming"
        assert manager.addresses_stay == (manager.mode == "measured")
        there = manager.ensure(4)
        assert min(there) >= 4
        assert there == manager.committed == manager.slots.counts
        views = manager.views()
        assert set(views) == {"full.0", "full.1", "windowed"}
        assert {role: view.dtype for role, view in views["windowed"].items()} == dict.fromkeys(
            ("key", "value"), torch.uint8
        )
        ids = wrap_slots([0, 3, 1000], there[FULL])
        views["full.1"]["value"][ids] = 7
        with manager.profile():
            pass
        with manager.warm_up() as warm:
            for request in manager.slots.dummy(history=16, tokens=4, count=2):
                manager.slots.free(request)
            warm.ran("mixed_step", tokens=64)
            warm.skipped("encoder", "this model has none")
        del views
        report = manager.finalize()
        assert manager.state == "ready"
        assert manager.addresses_stay
        assert manager.report is report
        assert report.mode == manager.mode
        assert report.nbytes == manager.plan.nbytes
        assert [str(each.shape) for each in report.exercised] == ["mixed_step"]
        assert report.skipped[0].reason == "this model has none"
        assert manager.committed == manager.slots.counts == tuple(group.slots for group in manager.plan.groups)
        views = manager.views()
        assert [len(views[name]["key"]) for name in ("full.0", "windowed")] == list(manager.committed)

        request = manager.slots.allocate(100, 90)
        slot = request.blocks(0)[2]
        views["full.1"]["key"][slot] = 5
        assert views["full.0"]["key"][slot].sum() == 0
        manager.slots.suspend(request)
        slept = manager.sleep(backup=True)
        assert slept is not None
        assert slept.released == report.nbytes
        assert manager.committed == (0, 0)
        assert manager.slots.resume(request) is False
        assert manager.wake()
        assert manager.slots.resume(request)
        assert not request.lost
        assert (manager.views()["full.1"]["key"][request.blocks(0)[2]] == 5).all()
        manager.slots.free(request)

        smaller = manager.resize(4 * MIB)
        assert smaller.nbytes <= 4 * MIB
        assert manager.committed == tuple(group.slots for group in smaller.groups)
        larger = manager.resize(6 * MIB)
        assert larger.nbytes > smaller.nbytes
        assert [len(manager.views()[name]["key"]) for name in ("full.0", "windowed")] == list(manager.committed)
        del views
    assert manager.state == "closed"


def test_views_have_one_address_for_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: from before there is memory, through every operation."""
    with on_host() as manager:
        views = manager.views()
        address = {(name, role): view.data_ptr() for name, roles in views.items() for role, view in roles.items()}
        assert len(views["full.0"]["key"]) > manager.committed[FULL]

        def check() -> None:
            for name, roles in manager.views().items():
                for role, view in roles.items():
                    assert view.data_ptr() == address[name, role]

        manager.ensure(8)
        check()
        manager.finalize()
        check()
        manager.resize(4 * MIB)
        check()
        manager.sleep()
        manager.wake()
        check()
        manager.resize(8 * MIB)
        check()
        views["full.0"]["key"][0] = 3
        assert marks(manager, FULL, 0) == {0, 3}
        del views


def test_every_storage_is_exactly_what_is_committed() -> None:
    """I6, and what connectors compare: storage bytes = blocks times the stride of a block."""
    with on_host() as manager:
        manager.finalize()
        views = manager.views()
        for name, group in (("full.0", FULL), ("windowed", WINDOWED)):
            for view in views[name].values():
                assert view.untyped_storage().nbytes() == manager.committed[group] * view.stride(0)
                assert len(view) == manager.committed[group]
        del views, view


def test_what_is_mapped_is_what_was_planned(make: Make) -> None:
    """I11, before and after."""
    with make() as manager:
        report = manager.finalize()
        assert report.budget is not None
        assert manager.plan.nbytes <= report.budget.nbytes
        assert report.nbytes == sum(each.nbytes for each in report.groups)
        assert manager.plan.nbytes == manager._core.path.backing.physical_bytes
        manager.resize(5 * MIB)
        assert manager.plan.nbytes == manager._core.path.backing.physical_bytes <= 5 * MIB


def take(driver: VmmDriver, nbytes: int) -> ExtensibleTensor:
    """Memory of the device for somebody else."""
    tensor = ExtensibleTensor(nbytes, driver)
    tensor.commit(nbytes)
    return tensor


def test_what_was_measured_is_what_is_left_and_no_more() -> None:
    """S2: 16 MiB, of which the engine takes 4 while it warms up, and a margin of 1."""
    driver = FineHostDriver()
    with with_driver(driver) as manager:
        manager.ensure(16)
        with manager.warm_up():
            graphs = take(driver, 4 * MIB)
        report = manager.finalize()
        assert report.budget is not None
        assert report.budget.headroom == 12 * MIB
        assert report.budget.nbytes == 11 * MIB
        assert 11 * MIB - 3 * FINE < report.nbytes <= 11 * MIB
        graphs.close()


@pytest.mark.parametrize("kind", [FineHostDriver, UniformDriver, KeepingDriver])
def test_where_less_fits_than_warm_up_had_the_smaller_commit_is_the_final_one(kind: type[FineHostDriver]) -> None:
    """S9, T9: and each segment is one allocation, with no granule of the larger prefix kept."""
    driver = kind()
    with with_driver(driver) as manager:
        large = manager.ensure(150)
        assert large == (150, 150)
        warm = manager._core.path.backing.physical_bytes
        other = take(driver, align_down(driver.memory_info().free - 4 * FINE, FINE))
        report = manager.finalize()
        assert any(now < then for now, then in zip(manager.committed, large, strict=True))
        assert manager._core.path.backing.physical_bytes == report.nbytes < warm
        assert report.budget is not None
        assert report.nbytes <= report.budget.nbytes
        if kind is UniformDriver:
            assert {each.allocation_nbytes for each in manager.memory.registrable()} == {FINE}
            other.close()
            return
        assert all(each.allocation_nbytes <= MIB for each in manager.memory.registrable())
        other.close()


def test_ensure_commits_no_more_than_warm_up_may_have(caplog: pytest.LogCaptureFixture) -> None:
    """S10: what is asked for beyond it is not there, and the answer says so; ids wrap at that."""
    with on_host(budget=MemoryBudget(margin_floor=12 * MIB)) as manager, caplog.at_level(logging.INFO):
        there = manager.ensure(manager.capacity)
        assert sum(there) > 2
        assert all(now < most for now, most in zip(there, manager.capacity, strict=True))
        assert manager._core.path.backing.physical_bytes <= 4 * MIB
        assert "all that warm-up may have" in caplog.text
        # Another look can bring more.
        manager.ensure_bound(manager.committable())
        assert manager.ensure(1) == there, "what is there stays"


@pytest.mark.parametrize(
    ("budget", "sized_by"),
    [
        (MemoryBudget(nbytes=3 * MIB), "bytes"),
        (MemoryBudget(slots=50), "slots"),
        (MemoryBudget(slots=[20, 30]), "slots"),
    ],
)
def test_a_size_that_is_given_wins(make: Make, budget: MemoryBudget, sized_by: str) -> None:
    """S12: nothing is measured."""
    with make(budget=budget) as manager:
        manager.ensure(10)
        report = manager.finalize()
        assert (report.sized_by, report.budget) == (sized_by, None)
        if budget.slots is not None:
            assert manager.committed == budget.slots_of(2)
        else:
            assert 3 * MIB - FINE <= report.nbytes <= 3 * MIB


def test_block_0_belongs_to_nobody(make: Make) -> None:
    """S13: capacity, committed and usable are three numbers."""
    with make(null_block=True) as manager:
        manager.ensure(4)
        request = manager.slots.dummy(tokens=16)[0]
        assert 0 not in request.blocks(0)
        manager.slots.free(request)
        report = manager.finalize()
        for group, sizes in enumerate(report.groups):
            assert sizes.usable == sizes.committed - 1 == manager.slots.usable[group]
            assert sizes.committed <= sizes.capacity
            assert manager.groups[group] == sizes[:3]
        longest = manager.slots.longest()
        for request in manager.slots.dummy(history=longest - 1, tokens=1):
            manager.slots.free(request)
        manager.sleep()
        manager.wake()
        assert manager.slots.usable == tuple(each.usable for each in report.groups)


def test_what_was_declared_runs_to_its_last_request(make: Make) -> None:
    """I13: allocated, suspended and resumed, on the smallest cache that is not refused."""
    with make() as manager:
        manager.finalize()
        manager.resize(manager.plan.min_nbytes)
        requests = [manager.slots.allocate(entry.capacity, entry.history_length) for entry in DEMAND.requests]
        live_to_the_last(manager, requests)


def test_what_may_shrink_shrinks_to_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4 with S3: fitted when the size is known and once, although addresses were planned before; floors stay (I12)."""
    long = Batch([Request(1 << 16, (1 << 16) - 1, ConstraintPolicy.FIT_TO_QUOTA)])
    with on_host(constraints=[DEMAND, long]) as manager:
        with pytest.warns(PlanWarning, match="reduced to fit"):
            report = manager.finalize()
        (reduction,) = report.reductions
        assert reduction.batch == 1
        capacity = reduction.capacity[1]
        assert manager.slots.fits(capacity, capacity - 1)
        floors = [group.min_slots for group in manager.plan.groups]
        with pytest.raises(Exception, match="needed"):
            manager.resize(manager.plan.min_nbytes - 1)
        assert [group.min_slots for group in manager.plan.groups] == floors


def test_sleep_by_tag_and_what_is_lost(make: Make) -> None:
    """S11: other tags are others' business; contents are lost unless there is a backup, and the request says so."""
    with make(tag="draft") as manager:
        manager.finalize()
        kept, lost = manager.slots.allocate(64, 40), manager.slots.allocate(64, 40)
        for number, request in enumerate((kept, lost), 1):
            for group, cycle in ((FULL, 0), (WINDOWED, 1)):
                for slot in request.blocks(cycle):
                    if slot >= 0:
                        mark(manager, group, slot, number)
        manager.slots.suspend(kept, backup=True)
        manager.slots.suspend(lost)
        assert manager.sleep(tags=["kv_cache"]) is None
        assert manager.state == "ready"
        slept = manager.sleep(tags={"draft", "weights"})
        assert slept is not None
        assert slept.suspended == 2
        assert manager.state == "asleep"
        assert manager.wake(tags=["kv_cache"]) is False
        assert manager.wake(tags=["draft"]) is True
        assert manager.slots.resume(kept)
        assert manager.slots.resume(lost)
        assert (kept.lost, lost.lost) == (False, True)
        for group, cycle in ((FULL, 0), (WINDOWED, 1)):
            for slot in kept.blocks(cycle):
                assert slot < 0 or marks(manager, group, slot) == {1}
            for slot in lost.blocks(cycle):
                assert slot < 0 or marks(manager, group, slot) == {0}, "memory is zero after waking"
        for request in (kept, lost):
            manager.slots.free(request)


def test_sleep_says_what_came_back_and_waits_for_drivers_that_are_late(caplog: pytest.LogCaptureFixture) -> None:
    """S11, and D10: memory that is kept until its addresses are free does come back."""
    with with_driver(KeepingDriver()) as manager, caplog.at_level(logging.WARNING):
        report = manager.finalize()
        slept = manager.sleep()
        assert slept is not None
        assert slept.came_back is not None
        assert slept.released == report.nbytes <= slept.came_back
        assert caplog.text == ""
        manager.wake()


def test_memory_that_did_not_come_back_is_told_with_numbers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S11: here a neighbour has taken it at once."""
    with on_host() as manager:
        manager.finalize()
        driver = manager._core.settings.driver
        assert driver is not None
        release, taken = driver._release, []

        def taking(handle: int) -> None:
            release(handle)
            taken.append(True)
            monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "2MiB")

        monkeypatch.setattr(driver, "_release", taking)
        with caplog.at_level(logging.WARNING):
            slept = manager.sleep()
        assert taken
        assert slept is not None
        assert slept.came_back is not None
        assert slept.came_back < slept.released
        assert "gave back" in caplog.text
        monkeypatch.setattr(driver, "_release", release)
        monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
        manager.wake()


def test_memory_that_nobody_has_touched_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S11: a system that counts pages when they are touched has nothing to show for a cache that nobody used."""
    monkeypatch.delenv(host_memory.VARIABLE)
    free = [16 * MIB]
    monkeypatch.setattr(host_memory, "_meminfo", lambda text: (16 * MIB, free[-1]))
    monkeypatch.setattr(host_memory, "_cgroup_limits", lambda membership, root: iter(()))
    with on_host() as manager, caplog.at_level(logging.INFO, "vmmcache.cache.sleeping"):
        manager.finalize()
        free.append(1 * MIB)  # a neighbour has touched its own
        slept = manager.sleep()
        assert slept is not None
        assert slept.source == "MemAvailable"
        assert slept.came_back == 0 < slept.released
        assert [record.levelno for record in caplog.records if "gave back" in record.message] == [logging.INFO]
        manager.wake()


def test_weights_that_were_there_before_count_where_the_caller_says_so() -> None:
    """S2: with a utilization below 1, what the engine took before it made the manager is its own use."""
    budget = MemoryBudget(utilization=0.5, margin_floor=0, margin_fraction=0)
    nbytes = []
    for free_at_start in (None, 16 * MIB):
        driver = FineHostDriver()
        weights = take(driver, 4 * MIB)
        with with_driver(driver, budget=budget, free_at_start=free_at_start) as manager:
            report = manager.finalize()
            assert report.budget is not None
            nbytes.append(report.budget.nbytes)
        weights.close()
    assert nbytes == [8 * MIB, 4 * MIB]


def test_the_estimate_beside_the_measurement() -> None:
    """vllm#50780: what an estimate would have given on the same numbers is in the report."""
    with on_host() as manager:
        report = manager.finalize()
        assert report.estimate is not None
        assert report.budget is not None
        assert report.estimate.requested == 16 * MIB * 92 // 100
        assert report.snapshots[0].stage == "start"
        assert [each.stage for each in report.snapshots[1:]] == ["constructed", "warm", "final"]
        assert report.to_dict()["schema"] == 1


def test_the_temporary_pool_leaves_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    """S4: what profiling ran on is no floor of the final pool, and its bytes are not charged twice."""
    limits = EngineLimits(1 << 20, 1 << 20)
    with caplog.at_level(logging.WARNING):
        manager = on_torch(limits=limits, warmup_constraints=[])
    with manager:
        assert manager.committed[FULL] > 100, "the runtime's chunk, as far as the temporary quota goes"
        assert manager.slots.fits(manager.committed[FULL] * 16 * 97 // 100 // 16 * 16)
        assert "profile with as many as fit" in caplog.text
        report = manager.finalize()
        assert report.budget is not None
        assert report.budget.nbytes == 16 * MIB * 92 // 100, "a configured size does not see torch's memory"
        floors = [group.min_slots for group in manager.plan.groups]
        with on_host() as other:
            other.finalize()
            assert floors == [group.min_slots for group in other.plan.groups]


def test_huge_devices_cost_no_time_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses for a terabyte, memory for one block."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "1TiB")
    with on_host() as manager:
        assert manager.plan.nbytes > 1000 * GIB
        assert manager._core.path.backing.physical_bytes <= 4 * FINE


def test_requests_are_served_while_the_cache_is_resized(make: Make) -> None:
    """S15 under load: threads allocate, grow and free; nobody ever has a slot that has no memory."""
    import threading

    with make() as manager:
        manager.finalize()
        stop, errors = threading.Event(), []

        def serve(number: int) -> None:
            try:
                while not stop.is_set():
                    request = manager.slots.allocate(32, 16)
                    manager.slots.grow(request, 48, 32)
                    assert max(request.blocks(0)) < manager.slots.counts[FULL]
                    if request.state is RequestState.ACTIVE:
                        manager.slots.suspend(request)
                    manager.slots.free(request)
            except Exception as error:  # noqa: BLE001 -- whatever a thread raises is told at the end
                errors.append(error)

        threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        sizes: list[Any] = []
        try:
            for quota in (5, 9, 4, 12, 6) * 4:
                try:
                    sizes.append(manager.resize(quota * MIB).nbytes)
                except Exception as error:  # noqa: BLE001 -- a request in the way is an answer; anything else is not
                    assert "active" in str(error), repr(error)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert errors == []
        assert len(sizes) > 5
