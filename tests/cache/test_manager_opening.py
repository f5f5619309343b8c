"""Which path is taken, and what two managers on one device make of it."""

from __future__ import annotations

import logging
import threading
from fractions import Fraction

import pytest

from tests.cache.managed import DEMAND, FULL, LAYOUT, SETTINGS, on_torch, with_driver
from tests.fine_host import FineHostDriver
from tests.helpers import PATIENCE_S, run_python
from vmmcache import (
    ConfigError,
    DriverError,
    KVCacheManager,
    MemoryBudget,
    QuotaError,
    SharedDevice,
    StateError,
)
from vmmcache.cache.opening import SWITCHED_OFF
from vmmcache.cache.shared import Demand, split
from vmmcache.planning import Batch, ConstraintPolicy, PlanWarning, Request
from vmmcache.testing import RecordingDriver
from vmmcache.units import MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib")


def test_a_device_that_works_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    """S1: after a real probe of the host, in its child process."""
    with KVCacheManager(LAYOUT, "host", MemoryBudget(nbytes=8 * MIB)) as manager:
        assert (manager.mode, manager.fallback_reason) == ("measured", None)
        assert caplog.text == ""


def test_a_driver_that_does_not_work_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S1, S4: vmm=None falls back with a warning; the default of the utilization is that of the path, unless set."""
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "host")
    with caplog.at_level(logging.WARNING):
        manager = KVCacheManager(LAYOUT, "host", MemoryBudget(margin_floor=0), [DEMAND])
    with manager:
        assert manager.mode == "estimated"
        assert manager.fallback_reason == "disabled by VMMCACHE_DISABLE_DRIVERS"
        assert caplog.text.count("estimated, not measured: disabled by") == 1
        report = manager.finalize()
        assert report.budget is not None
        assert report.budget.utilization == Fraction(92, 100)
        assert report.fallback_reason == manager.fallback_reason
    with KVCacheManager(LAYOUT, "host", MemoryBudget(utilization=0.5, margin_floor=0), [DEMAND]) as manager:
        report = manager.finalize()
        assert report.budget is not None
        assert report.budget.utilization == Fraction(1, 2)


def test_what_is_switched_off_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with on_torch() as manager:
        assert (manager.mode, manager.fallback_reason) == ("estimated", SWITCHED_OFF)
        assert caplog.text == ""


def test_a_small_probe_can_pass_and_the_large_reservation_fail(caplog: pytest.LogCaptureFixture) -> None:
    """S5: then it is the estimated path, too, and nothing of the other is left."""
    driver = RecordingDriver(FineHostDriver())
    driver.fail(verb="reserve")
    with caplog.at_level(logging.WARNING):
        manager = with_driver(driver)
    with manager:
        assert manager.mode == "estimated"
        assert "refused for a test" in str(manager.fallback_reason)
        assert "estimated, not measured" in caplog.text
        driver.check_clean()
        manager.finalize()
    driver.fail(verb="reserve")
    with pytest.raises(DriverError, match="vmm=True, and"):
        with_driver(driver, vmm=True)


def test_nothing_of_torch_is_needed_to_measure() -> None:
    """The measured path without views: an engine of its own kind may bring its own tensors."""
    script = """
    import sys
    from vmmcache import KVCacheManager, MemoryBudget
    from vmmcache.planning import Attention, Buffer, CacheLayout
    layout = CacheLayout(16, [Attention([Buffer("key", 4096), Buffer("value", 4096)], count=2)])
    with KVCacheManager(layout, "host", MemoryBudget(nbytes=8 << 20)) as manager:
        manager.ensure(8)
        with manager.warm_up() as warm:
            warm.ran("mixed_step", tokens=16)
        print(manager.finalize().nbytes, manager.slots.allocate(100).blocks(0)[0])
        manager.slots.free(manager.slots.requests[0])
        manager.sleep(); manager.wake(); manager.resize(4 << 20)
    print("torch" in sys.modules, "numpy" in sys.modules)
    """
    child = run_python(script, VMMCACHE_HOST_MEMORY="64MiB")
    assert (child.stdout, child.stderr) == ("8388608 0\nFalse False\n", "")


# Two managers on one device ---------------------------------------------------------------------------------------


def shared_budget() -> MemoryBudget:
    return MemoryBudget(margin_floor=MIB, margin_fraction=0, warmup_reserve=0)


@pytest.mark.parametrize("vmm", [None, False])
def test_target_and_draft_share_one_measurement(vmm: bool | None) -> None:
    """S1: measured once, split by the bytes of a token, so that both hold as many; all of it is used."""
    driver = FineHostDriver()
    shared = SharedDevice(shared_budget())
    arguments = {"constraints": [DEMAND], "shared": shared, "vmm": vmm, "chunk": MIB}
    device = driver if vmm is None else "host"
    with (
        KVCacheManager(LAYOUT, device, tag="target", **arguments) as target,  # type: ignore[arg-type]
        KVCacheManager(LAYOUT, device, tag="draft", **arguments) as draft,  # type: ignore[arg-type]
    ):
        for manager in (target, draft):
            manager.ensure(8)
            with manager.warm_up():
                pass
        one = target.finalize()
        shared.saw_peak(2 * MIB)  # too late to count
        two = draft.finalize()
        assert one.budget == two.budget, "one measurement"
        assert one.budget is not None
        total = one.nbytes + two.nbytes
        assert one.budget.nbytes - 8 * 64 * 1024 < total <= one.budget.nbytes
        assert abs(target.committed[FULL] - draft.committed[FULL]) <= 4
        # What sleeps by tag is one of them.
        draft.sleep(tags=["draft"])
        target.sleep(tags=["draft"])
        assert (target.state, draft.state) == ("ready", "asleep")
        draft.wake()
        with pytest.raises(StateError, match="measured already"):
            KVCacheManager(LAYOUT, device, **arguments)  # type: ignore[arg-type]
    assert repr(shared) == "<SharedDevice of 0 managers>"


@pytest.mark.parametrize("vmm", [None, False])
def test_while_they_warm_up_each_may_have_an_equal_part(vmm: bool | None) -> None:
    """S1, S10: what all may commit is not for each of them; a stated size is nobody's part."""
    shared = SharedDevice(shared_budget())
    arguments = {"constraints": [DEMAND], "shared": shared, "vmm": vmm, "chunk": MIB}
    device = FineHostDriver() if vmm is None else "host"
    with (
        KVCacheManager(LAYOUT, device, MemoryBudget(nbytes=2 * MIB), **arguments) as stated,  # type: ignore[arg-type]
        KVCacheManager(LAYOUT, device, **arguments) as target,  # type: ignore[arg-type]
        KVCacheManager(LAYOUT, device, **arguments) as draft,  # type: ignore[arg-type]
    ):
        for manager in (target, draft, target, draft):
            there = manager.ensure(manager.capacity)
            assert there == manager.committed
        assert stated.ensure(stated.capacity) == tuple(group.slots for group in stated.plan.groups)
        assert target.committed == draft.committed
        # All but the margin, and a granule of rounding for each of three segments of two managers.
        assert 13 * MIB < shared.committed <= 15 * MIB + 6 * 64 * 1024


def test_weights_and_stated_sizes_decide_the_split() -> None:
    driver = FineHostDriver()
    shared = SharedDevice(shared_budget(), weights=[3, 1, 1])
    arguments = {"constraints": [DEMAND], "shared": shared, "chunk": MIB}
    with (
        KVCacheManager(LAYOUT, driver, **arguments) as heavy,  # type: ignore[arg-type]
        KVCacheManager(LAYOUT, driver, **arguments) as light,  # type: ignore[arg-type]
        KVCacheManager(LAYOUT, driver, MemoryBudget(nbytes=2 * MIB), **arguments) as stated,  # type: ignore[arg-type]
    ):
        floor = heavy.plan.min_nbytes
        reports = [manager.finalize() for manager in (light, stated, heavy)]
        assert reports[1].sized_by == "bytes"
        assert reports[1].nbytes <= 2 * MIB
        rest = 13 * MIB - 2 * floor
        assert abs(reports[0].nbytes - floor - rest // 4) < 4 * 64 * 1024
        assert abs(reports[2].nbytes - floor - rest * 3 // 4) < 4 * 64 * 1024


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match="what is shared is measured"):
        SharedDevice(MemoryBudget(nbytes=1))
    for weights in ([0, 0], [-1, 2], []):
        with pytest.raises(ConfigError, match="weights"):
            SharedDevice(weights=weights)
    shared = SharedDevice(shared_budget(), weights=[1])
    arguments = SETTINGS | {"budget": None, "shared": shared}
    with KVCacheManager(LAYOUT, FineHostDriver(), **arguments) as manager:
        with pytest.raises(ConfigError, match="there is none for manager 1"):
            KVCacheManager(LAYOUT, FineHostDriver(), **arguments)
        manager.finalize()
    other = SharedDevice(shared_budget())
    arguments["shared"] = other
    with KVCacheManager(LAYOUT, FineHostDriver(), **arguments), pytest.raises(ConfigError, match="same vmm="):
        KVCacheManager(LAYOUT, "host", vmm=False, **arguments)


def test_requests_that_may_shrink_share_what_there_is() -> None:
    """Neither fits as declared: each gets what it cannot do without, and the rest by what it lacks."""
    long = Batch([Request(1 << 14, (1 << 14) - 1, ConstraintPolicy.FIT_TO_QUOTA)])
    shared = SharedDevice(shared_budget())
    driver = FineHostDriver()
    arguments = {"constraints": [long], "shared": shared, "chunk": MIB}
    with (
        KVCacheManager(LAYOUT, driver, **arguments) as one,  # type: ignore[arg-type]
        KVCacheManager(LAYOUT, driver, **arguments) as two,  # type: ignore[arg-type]
    ):
        with pytest.warns(PlanWarning, match="reduced"):
            reports = [manager.finalize() for manager in (one, two)]
        assert abs(reports[0].nbytes - reports[1].nbytes) < MIB
        assert sum(report.nbytes for report in reports) <= 15 * MIB


def test_the_split_by_itself() -> None:
    even = [Fraction(1), Fraction(1)]
    assert split(100, [Demand(10, 10, 1), Demand(30, 30, 1)], even) == [40, 60]
    assert split(40, [Demand(10, 10, 1), Demand(30, 30, 1)], even) == [10, 30]
    assert split(60, [Demand(10, 50, 1), Demand(30, 70, 1)], even) == [20, 40]
    assert split(7, [Demand(1, 1, 1), Demand(1, 1, 1)], [Fraction(0), Fraction(1)]) == [1, 6]
    with pytest.raises(QuotaError) as caught:
        split(39, [Demand(10, 10, 1), Demand(30, 30, 1)], even)
    assert (caught.value.needed, caught.value.usable) == (40, 39)


def test_the_largest_of_two_peaks_counts_also_where_they_are_seen_at_once() -> None:
    """S1: managers of one device may warm up in threads of their own."""
    shared, settled = SharedDevice(), threading.Event()

    class Watched:
        """The device's lock, which says when somebody has to wait for it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if not self._lock.acquire(blocking=False):
                settled.set()
                assert self._lock.acquire(timeout=PATIENCE_S)

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    class Slow(int):
        """Compared while another manager has seen a larger one, or waits to say so."""

        def __gt__(self, other: int) -> bool:
            threads.append(threading.Thread(target=see))
            threads[0].start()
            assert settled.wait(PATIENCE_S)
            return int(self) > int(other)

    def see() -> None:
        shared.saw_peak(100)
        settled.set()

    threads: list[threading.Thread] = []
    vars(shared)["_lock"] = Watched()
    shared.saw_peak(Slow(50))
    threads[0].join(PATIENCE_S)
    assert shared.peak == 100
