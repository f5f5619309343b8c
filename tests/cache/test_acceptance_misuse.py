"""Misuse and bad luck, as an engine's author would meet them: from the contract alone, on both paths.

Every error is typed and says what helps; afterwards the manager is what it was, and the engine can go on.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cache.managed import FULL, LAYOUT, SETTINGS, Make, on_torch, use
from vmmcache import (
    ConfigError,
    ConnectorUnavailable,
    DriverUnavailable,
    KVCacheManager,
    LeaseError,
    MemoryBudget,
    PlanError,
    QuotaError,
    SharedDevice,
    SlotsExhausted,
    StateError,
    VmmCacheError,
)
from vmmcache.planning import Batch, Request
from vmmcache.units import MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib")


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
