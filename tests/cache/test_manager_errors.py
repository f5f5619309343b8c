"""Every misuse of a manager is a typed error that says what helps; nothing is lost, and the manager is usable."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tests.cache.managed import (
    DEMAND,
    FULL,
    LAYOUT,
    Make,
    mark,
    marks,
    on_host,
    with_driver,
)
from tests.fine_host import FineHostDriver
from vmmcache import (
    ConfigError,
    DriverUnavailable,
    ExtensibleTensor,
    KVCacheManager,
    LeaseError,
    MemoryBudget,
    OutOfDeviceMemory,
    PlanError,
    QuotaError,
    RegistrationLease,
    SharedDevice,
    StateError,
    merge_measurements,
)
from vmmcache.cache.ranks import measurement_of
from vmmcache.cache.states import TRANSITIONS, Event, State
from vmmcache.planning import Batch, Request
from vmmcache.units import MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib")


CALLS: dict[Event, Callable[[KVCacheManager], Any]] = {
    Event.VIEWS: lambda manager: manager.views(),
    Event.COMMITTABLE: lambda manager: manager.committable(),
    Event.BOUND: lambda manager: manager.ensure_bound([]),
    Event.ENSURE: lambda manager: manager.ensure(4),
    Event.PROFILE: lambda manager: manager.profile().__enter__(),
    Event.WARM_UP: lambda manager: manager.warm_up().__enter__(),
    Event.MEASURE: lambda manager: manager.measure(),
    Event.APPLY: lambda manager: manager.apply([]),
    Event.FINALIZE: lambda manager: manager.finalize(),
    Event.RESIZE: lambda manager: manager.resize(4 * MIB),
    Event.SLEEP: lambda manager: manager.sleep(),
    Event.WAKE: lambda manager: manager.wake(),
    Event.CLOSE: lambda manager: manager.close(),
}


def test_the_wrong_order_is_refused_with_state_and_event(make: Make) -> None:
    """Every event in every state that does not allow it; afterwards all is as it was."""
    assert set(CALLS) == set(Event)
    manager = make()
    for state, to_next in (
        (State.WARMING, manager.finalize),
        (State.READY, manager.sleep),
        (State.ASLEEP, manager.close),
        (State.CLOSED, manager.close),
    ):
        assert manager.state == state.value
        before = manager.slots.counts
        for event, call in CALLS.items():
            if event not in TRANSITIONS[state]:
                with pytest.raises(StateError) as caught:
                    call(manager)
                assert (caught.value.state, caught.value.event) == (state.value, event.value)
        assert (manager.state, manager.slots.counts) == (state.value, before)
        to_next()
    assert manager.slots.counts == (0, 0)


def test_the_size_is_decided_once(make: Make) -> None:
    with make() as manager:
        report = manager.finalize()
        with pytest.raises(StateError, match="decided already"):
            manager.finalize()
        assert manager.report is report


def test_slots_beyond_the_capacity_are_refused() -> None:
    with on_host() as manager:
        too_many = manager.capacity[FULL] + 10_000
        for wrong in (too_many, [1, too_many], [1], -1, 2.0, True):
            with pytest.raises(ConfigError):
                manager.ensure(wrong)  # type: ignore[arg-type]  # some are no numbers, and that is the point
        assert manager.committed == (1, 1)
        manager.ensure(4)


def test_memory_that_is_not_there_leaves_warm_up_as_it_was() -> None:
    driver = FineHostDriver()
    with with_driver(driver) as manager:
        manager.ensure(4)
        other = ExtensibleTensor(15 * MIB, driver)
        other.commit(15 * MIB)
        with pytest.raises(OutOfDeviceMemory):
            manager.ensure(200)
        assert manager.committed == manager.slots.counts == (4, 4)
        other.close()
        assert manager.ensure(200) == (200, 200)


def test_requests_of_the_warm_up_have_to_go_before_the_size_is_decided(make: Make) -> None:
    with make() as manager:
        manager.ensure(8)
        requests = manager.slots.dummy(tokens=16, count=2)
        with pytest.raises(StateError, match="has 2 requests; free those of the warm-up"):
            manager.finalize()
        with pytest.raises(StateError):
            manager.apply(manager.measure())
        for request in requests:
            manager.slots.free(request)
        manager.finalize()


def test_sleep_waits_for_requests_that_run(make: Make) -> None:
    """S11; with `revoke` they are suspended."""
    with make() as manager:
        manager.finalize()
        request = manager.slots.allocate(32)
        with pytest.raises(StateError, match="1 requests that are not suspended"):
            manager.sleep()
        assert manager.state == "ready"
        slept = manager.sleep(revoke=True, backup=True)
        assert slept is not None
        manager.wake()
        assert manager.slots.resume(request)
        assert not request.lost


def test_sleep_and_close_and_shrinking_respect_a_foreign_lease(make: Make) -> None:
    """S11, I9: nothing has changed, contents are where they were; with `revoke` the owner lets go."""
    with make() as manager:
        manager.finalize()
        request = manager.slots.allocate(32, 16)
        mark(manager, FULL, request.blocks(0)[0], 7)
        manager.slots.suspend(request)
        let_go: list[RegistrationLease] = []
        lease = manager.memory.lease(0, "theirs", let_go.append)
        for call in (manager.sleep, manager.close, lambda: manager.resize(3 * MIB)):
            with pytest.raises(LeaseError, match="theirs") as caught:
                call()
            assert caught.value.owners == ("theirs",)
            assert manager.state == "ready"
            assert manager.slots.counts == manager.committed
            assert manager.slots.resume(request)
            assert not request.lost
            assert marks(manager, FULL, request.blocks(0)[0]) == {7}
            manager.slots.suspend(request)
        assert manager.sleep(revoke=True) is not None
        assert let_go == [lease]
        manager.wake()
        manager.memory.lease(0, "theirs", let_go.append)
        manager.close(revoke=True)


def test_wake_without_memory_stays_asleep_and_can_be_repeated() -> None:
    """S11."""
    driver = FineHostDriver()
    with with_driver(driver) as manager:
        manager.finalize()
        counts = manager.committed
        manager.sleep()
        other = ExtensibleTensor(12 * MIB, driver)
        other.commit(12 * MIB)
        for _ in range(2):
            with pytest.raises(OutOfDeviceMemory):
                manager.wake()
            assert (manager.state, manager.slots.counts) == ("asleep", (0, 0))
            assert driver.memory_info().free == 4 * MIB, "what it could get it gave back"
        other.close()
        manager.wake()
        assert manager.committed == manager.slots.counts == counts
        manager.slots.free(manager.slots.allocate(16))


def test_close_with_live_views_says_how_many(make: Make) -> None:
    manager = make()
    manager.finalize()
    views = manager.views()
    with pytest.raises(StateError, match=r"\d+ live views"):
        manager.close()
    assert manager.state == "ready"
    assert manager.slots.fits(16)
    del views
    request = manager.slots.allocate(16)
    manager.close()
    manager.close()
    assert manager.slots.counts == (0, 0)
    with pytest.raises(StateError):
        manager.slots.free(request)


def test_vmm_is_insisted_on_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "host")
    with pytest.raises(DriverUnavailable, match="vmm=True, and disabled by VMMCACHE_DISABLE_DRIVERS") as caught:
        KVCacheManager(LAYOUT, "host", vmm=True)
    assert "Take it out" in caught.value.cure
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("layout", {"layout": 3}),
        ("device", {"device": "host:x"}),
        ("device", {"device": 3}),
        ("budget", {"budget": 1 << 30}),
        ("constraints[0]", {"constraints": [Request(3)]}),
        ("warmup_constraints[0]", {"warmup_constraints": [3]}),
        ("ranks", {"ranks": 2}),
        ("connectors", {"connectors": "nixl"}),
        ("connectors", {"connectors": [3]}),
        ("vmm", {"vmm": "yes"}),
        ("limits", {"limits": 8192}),
        ("arrangement", {"arrangement": "diagonal"}),
        ("tag", {"tag": ""}),
        ("shared", {"shared": "cuda:0"}),
        ("free_at_start", {"free_at_start": -1}),
        ("chunk", {"chunk": 0}),
        ("max_util_for_resume", {"max_util_for_resume": -1.0}),
        ("pool_ratio", {"pool_ratio": [1.0]}),
        ("budget", {"shared": SharedDevice(), "budget": MemoryBudget(utilization=0.5)}),
    ],
)
def test_arguments_are_checked_by_name(field: str, arguments: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"layout": LAYOUT, "device": "host", "vmm": False}
    with pytest.raises(ConfigError) as caught:
        KVCacheManager(**(plain | arguments))
    assert caught.value.field == field


def test_sizes_that_exclude_each_other_and_no_size() -> None:
    both: list[dict[str, Any]] = [{"nbytes": 1 << 20, "utilization": 0.5}, {"slots": 3, "nbytes": 3}]
    for wrong in [*both, {"nbytes": 0}, {"slots": 0}]:
        with pytest.raises(ConfigError):
            MemoryBudget(**wrong)


def test_nothing_left_for_the_cache_is_an_error_that_can_be_retried(make: Make) -> None:
    """S3: it names what helps, and never a utilization that is 1 already."""
    with make() as manager:
        manager._core.shared.saw_peak(1 << 40)
        with pytest.raises(PlanError, match="no slot") as caught:
            manager.finalize()
        assert "raise utilization above 1" not in str(caught.value)
        assert manager.state == "warming"
        manager._core.shared.peak = 0
        manager.finalize()


def test_what_was_declared_and_does_not_fit_is_named(make: Make) -> None:
    """S3, I13."""
    manager = make(constraints=[DEMAND, Batch([Request(3000)])], warmup_constraints=[Batch([Request(16)])])
    with manager:
        manager._core.shared.saw_peak(10 * MIB)
        with pytest.raises(QuotaError, match="3000 tokens"):
            manager.finalize()
        assert manager.state == "warming"


def test_more_than_the_device_could_ever_have_is_refused_at_once() -> None:
    with pytest.raises(QuotaError):
        on_host(constraints=[Batch([Request(1 << 20)])])


@pytest.mark.parametrize("budget", [MemoryBudget(slots=4), MemoryBudget(nbytes=64 << 10)])
def test_a_stated_size_in_which_nothing_runs_is_refused(make: Make, budget: MemoryBudget) -> None:
    with pytest.raises(PlanError), make(budget=budget) as manager:
        manager.finalize()


def test_resize_keeps_to_floors_and_capacity(make: Make) -> None:
    """S15, I12: nothing changes where it is refused."""
    with make() as manager:
        manager.finalize()
        before, floor = manager.committed, manager.plan.min_nbytes
        with pytest.raises(QuotaError) as caught:
            manager.resize(floor - 1)
        assert caught.value.needed == floor
        for wrong, problem in ((64 * MIB, "addresses are reserved for"), (0, "at least 1"), (1.5, "whole number")):
            with pytest.raises(ConfigError, match=problem) as refused:
                manager.resize(wrong)  # type: ignore[arg-type]  # one is no number
            assert refused.value.field == "quota"
        requests = [manager.slots.allocate(512) for _ in range(3)]
        with pytest.raises(StateError, match="active requests"):
            manager.resize(floor)
        assert manager.committed == manager.slots.counts == before
        for request in requests:
            manager.slots.free(request)
        manager.resize(floor)


def test_nobody_gets_a_slot_before_there_is_memory_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: at no moment are more slots handed out than are backed, before and after the memory changes."""
    with on_host() as manager:
        manager.finalize()
        manager.resize(4 * MIB)
        backing = manager._core.path.backing
        commit, seen = backing.commit, []

        def watched(counts: Any, **how: Any) -> None:
            for when in range(2):
                handed_out = manager.slots.counts
                assert all(out <= there for out, there in zip(handed_out, backing.slots, strict=True))
                seen.append(handed_out)
                if not when:
                    commit(counts, **how)

        monkeypatch.setattr(backing, "commit", watched)
        manager.resize(8 * MIB)
        manager.resize(3 * MIB)
        assert len(seen) == 4


def test_what_ranks_agree_on_has_to_hold_what_was_declared() -> None:
    """I13, S3: a rank with too few slots for all of them is told by the floors, before anything is committed."""
    with on_host() as manager:
        few = measurement_of(LAYOUT, "measured", [3, 3], manager.capacity).to_ints()
        with pytest.raises(PlanError, match=r"pool group 0 has 3 slots and constraints\[0\].* 128 tokens.* needs 10"):
            manager.apply(merge_measurements([manager.measure(), few]))
        assert (manager.state, manager.committed) == ("warming", (1, 1))
        manager.finalize()


def test_a_slot_cannot_be_freed_twice() -> None:
    with on_host() as manager:
        manager.finalize()
        request = manager.slots.allocate(16)
        manager.slots.free(request)
        with pytest.raises(StateError):
            manager.slots.free(request)
        assert manager.slots.free_slots(FULL) == manager.committed[FULL]


def test_tags_are_several_names() -> None:
    with on_host() as manager:
        manager.finalize()
        for call in (manager.sleep, manager.wake):
            with pytest.raises(ConfigError, match=r"\(tag,\)"):
                call("kv_cache")


def test_an_error_in_the_block_is_the_one_that_is_seen() -> None:
    """Views keep it from closing; that is a note."""
    views: list[Any] = []

    def fail() -> None:
        with manager:
            views.append(manager.views())
            raise ZeroDivisionError

    manager = on_host()
    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    assert "not closed" in caught.value.__notes__[0]
    views.clear()
    manager.close()


def test_numbers_that_were_not_agreed_on_are_refused() -> None:
    """S10: plain integers of the engine's are checked before anything is done."""
    with on_host() as manager:
        good = manager.measure()
        for wrong in ([], [7], good[:-1], [*good, 1]):
            with pytest.raises(ConfigError):
                manager.apply(wrong)
            with pytest.raises(ConfigError):
                manager.ensure_bound(wrong)
        assert manager.state == "warming"
        report = manager.apply(good)
        assert manager.committed == tuple(each.committed for each in report.groups)


def test_memory_that_disappears_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour takes 4 MiB between measuring and committing: less is committed, and in the end all is well."""
    driver = FineHostDriver()
    taken: list[ExtensibleTensor] = []
    with with_driver(driver) as manager:
        path = manager._core.path
        commit = path.commit

        def neighbour(counts: Any) -> None:
            if not taken:
                taken.append(ExtensibleTensor(4 * MIB, driver))
                taken[0].commit(4 * MIB)
            commit(counts)

        monkeypatch.setattr(path, "commit", neighbour)
        report = manager.finalize()
        assert report.budget is not None
        assert report.budget.headroom == 12 * MIB
        assert report.nbytes <= 11 * MIB
        assert path.backing.physical_bytes == report.nbytes
        taken[0].close()


def test_memory_that_disappears_every_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of times; then the error, with the manager warming up as it was."""
    driver = FineHostDriver()
    with with_driver(driver) as manager:
        manager.ensure(4)
        create = driver._create
        tries = []

        def scarce(nbytes: int) -> Any:
            if nbytes > 256 * 1024:
                tries.append(nbytes)
                raise OutOfDeviceMemory("gone", driver="host", call="create", requested=nbytes, free=1)
            return create(nbytes)

        monkeypatch.setattr(driver, "_create", scarce)
        with pytest.raises(OutOfDeviceMemory):
            manager.finalize()
        assert len(tries) == 3
        assert (manager.state, manager.committed) == ("warming", (4, 4))
        monkeypatch.setattr(driver, "_create", create)
        manager.finalize()
