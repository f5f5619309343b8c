"""U6: the figures are those of the memory, belong together whenever somebody looks, and cost next to nothing."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S, GatedDriver, status_of_child
from vmmcache import ExtensibleTensor, SharedTensor, TensorServer, metrics
from vmmcache.errors import DriverError, OutOfDeviceMemory, StateError
from vmmcache.metrics import DeviceMetrics, Latency
from vmmcache.metrics._histogram import BOUNDS_S, Histogram
from vmmcache.metrics._meter import Meter
from vmmcache.testing import RecordingDriver
from vmmcache.testing.recording import out_of_memory

WHAT = ("commit", "defragment", "sleep", "lease")

_numbers = itertools.count()


class MeteredDriver(FineHostDriver):
    """A device of its own in the figures; its memory is the host's, and dirty as a GPU's."""

    fresh_is_zero: ClassVar[bool] = False

    def __init__(self) -> None:
        self.called = f"metered:{next(_numbers)}"
        super().__init__()

    @property
    def device(self) -> str:
        return self.called


def figures(driver: MeteredDriver | RecordingDriver) -> DeviceMetrics:
    return metrics.snapshot().devices[driver.device]


def journal(driver: RecordingDriver) -> Counter[str]:
    """Calls that reached the vendor and succeeded."""
    return Counter(call.verb for call in driver.journal if not call.refused)


def same_as(tensors: list[ExtensibleTensor], found: DeviceMetrics) -> None:
    """The figures of a device are the sums over its tensors, as these say themselves."""
    alive = [tensor for tensor in tensors if tensor.state != "closed"]
    assert found.tensors == len(alive)
    assert found.committed_bytes == sum(tensor.committed_bytes for tensor in alive)
    assert found.physical_bytes == sum(tensor.physical_bytes for tensor in tensors)
    assert found.allocations == sum(len(tensor.allocations) for tensor in tensors)
    assert found.file_descriptors == found.allocations
    assert found.generations == sum(tensor.generation for tensor in tensors)


# What there is --------------------------------------------------------------------------------------------------------


def test_a_life_in_figures() -> None:
    driver = RecordingDriver(MeteredDriver())
    tensor = ExtensibleTensor(64 * FINE, driver, segments=4)
    assert figures(driver).reserved_bytes == 64 * FINE
    same_as([tensor], figures(driver))
    tensor.commit([FINE, 3 * FINE, 0, 5])
    same_as([tensor], figures(driver))
    assert figures(driver).mappings == 3
    lease = tensor.lease(1, "nixl")
    assert figures(driver).leases == 1
    lease.release()
    lease.release()
    assert figures(driver).leases == 0
    tensor.commit([FINE, FINE, FINE, FINE], defragment=True, keep=True)
    same_as([tensor], figures(driver))
    tensor.release_physical(backup=True)
    assert figures(driver).committed_bytes == figures(driver).physical_bytes == 0
    assert figures(driver).reserved_bytes == 64 * FINE
    tensor.restore()
    same_as([tensor], figures(driver))
    tensor.close()
    last = figures(driver)
    assert (last.tensors, last.reserved_bytes, last.physical_bytes, last.allocations, last.mappings) == (0,) * 5
    # Exactly what the vendor was asked, by a journal that is not ours.
    assert Counter(last.calls) == journal(driver)
    assert last.calls["synchronise"] == last.operations["wait"].count
    assert {name: latency.count for name, latency in last.operations.items() if name != "wait"} == {
        "commit": 2,
        "release_physical": 1,
        "restore": 1,
        "close": 1,
    }
    assert all(latency.seconds > 0 for latency in last.operations.values())
    assert last.errors == {}
    assert last.last_error is None


def test_what_closed_tensors_did_stays_counted() -> None:
    driver = RecordingDriver(MeteredDriver())
    for _ in range(3):
        with ExtensibleTensor(4 * FINE, driver) as tensor:
            tensor.commit(FINE)
    tensor.close()  # once more does nothing, and makes nothing wrong
    found = figures(driver)
    assert found.operations["commit"].count == 3
    assert found.calls["create"] == found.calls["release"] == 3
    assert found.allocations == found.tensors == found.reserved_bytes == 0


def test_the_total_is_the_sum_of_all_devices() -> None:
    drivers = [MeteredDriver(), MeteredDriver()]
    tensors = [ExtensibleTensor(8 * FINE, driver) for driver in drivers]
    before = metrics.snapshot().total
    tensors[0].commit(FINE)
    tensors[1].commit(2 * FINE)
    now = metrics.snapshot()
    assert now.total.physical_bytes - before.physical_bytes == 3 * FINE
    assert now.total.calls["create"] - before.calls["create"] == 2
    assert now.total.operations["commit"].count == sum(
        device.operations["commit"].count for device in now.devices.values() if "commit" in device.operations
    )
    with pytest.raises(TypeError):
        now.devices["host"] = now.total  # type: ignore[index]
    for tensor in tensors:
        tensor.close()


def test_memory_of_another_process_counts_where_it_is_mapped(tmp_path: Any) -> None:
    ours, theirs = MeteredDriver(), MeteredDriver()
    with ExtensibleTensor(8 * FINE, ours, segments=2) as tensor, TensorServer(tensor, tmp_path / "socket"):
        tensor.commit(2 * FINE)
        with SharedTensor.connect(tmp_path / "socket", theirs) as shared:
            found = figures(theirs)
            assert (found.tensors, found.committed_bytes, found.physical_bytes) == (1, 4 * FINE, 4 * FINE)
            assert found.calls["import_handle"] == found.allocations == len(shared.allocations) == 2
        assert figures(theirs).physical_bytes == figures(theirs).committed_bytes == figures(theirs).tensors == 0


# What went wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["create", "map", "grant"])
def test_an_operation_that_fails_is_counted_and_the_rest_is_as_it_was(verb: str) -> None:
    driver = RecordingDriver(MeteredDriver())
    with ExtensibleTensor(16 * FINE, driver, segments=2) as tensor:
        tensor.commit(FINE)
        before = figures(driver)
        driver.fail(2, verb=verb, error=out_of_memory)
        with pytest.raises(OutOfDeviceMemory):
            tensor.commit(3 * FINE)
        now = figures(driver)
        assert (now.physical_bytes, now.allocations, now.mappings) == (2 * FINE, 2, 2)
        assert now.errors == {"commit": 1}
        assert now.last_error is not None
        assert now.last_error.operation == "commit"
        assert now.last_error.what.startswith("OutOfDeviceMemory: ")
        assert now.last_error.time > before.operations["commit"].seconds
        assert now.operations["commit"].count == before.operations["commit"].count + 1
        assert Counter(now.calls) == journal(driver)


def test_what_the_driver_refuses_to_take_back_stays_in_the_figures() -> None:
    driver = RecordingDriver(MeteredDriver())
    tensor = ExtensibleTensor(16 * FINE, driver)
    tensor.commit(FINE)
    driver.fail(verb="release")
    with pytest.raises(DriverError):
        tensor.close()
    found = figures(driver)
    assert (found.tensors, found.allocations, found.physical_bytes, found.mappings) == (0, 1, FINE, 0)
    driver.heal()
    tensor.close()
    assert figures(driver).allocations == figures(driver).physical_bytes == figures(driver).reserved_bytes == 0


def test_wrong_calls_are_no_failures_of_operations() -> None:
    driver = MeteredDriver()
    with ExtensibleTensor(FINE, driver) as tensor, pytest.raises(StateError):
        tensor.restore()
    # It was refused inside the operation: counted as one, with the reason.
    assert figures(driver).errors == {"restore": 1}
    assert "does not allow restore" in str(figures(driver).last_error)


# That they belong together --------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from(("commit", "defragment", "sleep", "lease"))))
)
def test_whatever_is_done_the_figures_are_those_of_the_tensors(steps: list[tuple[bool, int, str]]) -> None:
    driver = RecordingDriver(MeteredDriver())
    tensors = [ExtensibleTensor(12 * FINE, driver, segments=2) for _ in range(2)]
    for second, size, what in steps:
        tensor = tensors[second]
        if what == "sleep":
            tensor.restore() if tensor.state == "asleep" else tensor.release_physical()
        elif tensor.state != "asleep":
            if what == "lease" and tensor.committed_bytes:
                with tensor.lease(0, "nixl"):
                    assert figures(driver).leases == 1
            else:
                tensor.commit(size * FINE // 2, defragment=what == "defragment")
        same_as(tensors, figures(driver))
        assert Counter(figures(driver).calls) == journal(driver)
    for tensor in tensors:
        tensor.close()
    same_as(tensors, figures(driver))


def test_a_snapshot_never_sees_half_of_what_threads_do() -> None:
    """Each thread gives memory back and then takes as much elsewhere: the sum is never more than before."""
    drivers = [MeteredDriver() for _ in range(2)]
    turns, most = 150, 4 * FINE
    pairs = [[ExtensibleTensor(16 * FINE, drivers[place]) for place in range(2)] for _ in range(2)]
    begin = threading.Barrier(3)

    def move(first: ExtensibleTensor, second: ExtensibleTensor) -> None:
        begin.wait(PATIENCE_S)
        for _ in range(turns):
            first.commit(0)
            second.commit(most)
            first, second = second, first

    looks = 0
    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(move, *pair) for pair in pairs]
        begin.wait(PATIENCE_S)
        while not all(each.done() for each in work) or not looks:
            now = metrics.snapshot()
            devices = [now.devices[driver.device] for driver in drivers]
            assert sum(device.physical_bytes for device in devices) <= 2 * most
            for device in devices:
                calls = Counter(device.calls)
                assert device.allocations == calls["create"] - calls["release"]
                assert device.mappings == calls["map"] - calls["unmap"]
                # An operation as a whole: what is mapped is visible, and what is not is not.
                assert device.allocations == device.mappings
                assert device.committed_bytes == device.physical_bytes
                assert calls["synchronise"] == device.operations.get("wait", Latency((), 0)).count
            looks += 1
        for each in work:
            each.result(PATIENCE_S)
    for tensor in itertools.chain(*pairs):
        tensor.close()


class Tripwire(Meter):
    """A region that is looked at between two others, and at which something happens then, once."""

    nobody: ClassVar[tuple[int, ...]] = (0,)

    def __init__(self, device: str, happens: Callable[[], object]) -> None:
        self.happens: list[Callable[[], object]] = [happens]
        super().__init__(device, 0)

    @property  # type: ignore[override]  # an attribute elsewhere
    def leased(self) -> tuple[int, ...]:
        if self.happens:
            self.happens.pop()()
        return self.nobody

    @leased.setter
    def leased(self, _: tuple[int, ...]) -> None:
        pass


def test_memory_that_moves_while_somebody_looks_is_seen_once() -> None:
    """The same without luck: it moves from a tensor that was looked at to one that will be."""
    driver, most = MeteredDriver(), 4 * FINE
    first = ExtensibleTensor(most, driver)
    first.commit(most)
    moved: list[bool] = []

    def move() -> None:
        first.commit(0)
        second.commit(most)
        moved.append(True)

    wire = Tripwire(driver.device, lambda: None)
    wire.opened()
    try:
        second = ExtensibleTensor(most, driver)
        wire.happens = [move]
        assert figures(driver).physical_bytes == most
        assert moved
    finally:
        wire.closed()
        wire.finish("close", 1, None)
    first.close()
    second.close()


def test_a_snapshot_waits_for_nobody() -> None:
    class Gated(GatedDriver):
        @property
        def device(self) -> str:
            return "gated:0"

    driver = Gated()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(driver.granule)
    driver.gate.clear()
    driver.waiting.clear()
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(tensor.commit, 2 * driver.granule)
        assert driver.waiting.wait(PATIENCE_S)
        found = metrics.snapshot().devices["gated:0"]  # would hang here
        assert (found.physical_bytes, found.operations["commit"].count) == (driver.granule, 1)
        driver.gate.set()
        hanging.result(PATIENCE_S)
    assert metrics.snapshot().devices["gated:0"].physical_bytes == 2 * driver.granule
    tensor.close()


# What it costs --------------------------------------------------------------------------------------------------------


def test_a_commit_pays_for_the_figures_with_a_few_calls_that_are_counted_here() -> None:
    driver = FineHostDriver()  # new memory is zero: the shortest way that a commit can take
    tensor = ExtensibleTensor(64 * FINE, driver)
    tensor.commit(FINE)
    called: Counter[str] = Counter()

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call" and "vmmcache" in frame.f_code.co_filename:
            place = frame.f_code.co_filename.rpartition("vmmcache/")[2]
            if place.startswith("metrics/") or place.endswith(("_verbs.py",)):
                called[frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        tensor.commit(2 * FINE)
    finally:
        sys.setprofile(None)
    assert called == Counter(create=1, map=1, grant=1, finish=1, _show=1)
    tensor.close()


def test_nothing_piles_up_however_long_a_tensor_lives() -> None:
    driver = MeteredDriver()
    tensor = ExtensibleTensor(8 * FINE, driver)

    def live() -> None:
        for _ in range(700):  # more notes than are kept apart
            tensor.commit(0)
            tensor.commit(FINE)

    live()
    before = sys.getallocatedblocks()
    live()
    live()
    assert sys.getallocatedblocks() - before < 2100  # the notes themselves, at most
    assert figures(driver).operations["commit"].count == 6 * 700
    assert figures(driver).calls["create"] == 3 * 700
    tensor.close()


def test_durations_are_counted_up_to_and_with_each_bound() -> None:
    def bucket(nanoseconds: int) -> int:
        (place,) = (place for place, count in enumerate(Histogram().plus([nanoseconds - 1]).counts) if count)
        return place

    assert BOUNDS_S[0] == 1.024e-6
    assert [bucket(number) for number in (0, 1, 1024, 1025, 2048, 2049)] == [0, 0, 0, 1, 1, 2]
    assert bucket(1 << 35) == len(BOUNDS_S) - 1
    assert bucket((1 << 35) + 1) == bucket(1 << 60) == len(BOUNDS_S)
    both = Histogram().plus([0, 9]).merged(Histogram().plus([2000]))
    assert sum(both.counts) == 3
    assert both.nanoseconds == 1 + 10 + 2001


# Other processes, and tests -------------------------------------------------------------------------------------------


def test_a_forked_child_has_nothing_and_may_look() -> None:
    tensor = ExtensibleTensor(FINE, MeteredDriver())
    tensor.commit(FINE)

    def look() -> None:
        if metrics.snapshot().total.physical_bytes:
            os.abort()

    with metrics._meter._lock:  # as another thread may at the moment of the fork
        assert status_of_child(look) == 0
    tensor.close()


def test_reset_forgets_what_was_and_not_what_is() -> None:
    driver = MeteredDriver()
    tensor = ExtensibleTensor(4 * FINE, driver)
    tensor.commit(2 * FINE)
    tensor.commit(0)
    tensor.commit(FINE)
    metrics.reset()
    found, before = figures(driver), tensor.generation
    assert (found.calls, found.operations, found.generations) == ({}, {}, 0)
    assert (found.physical_bytes, found.allocations, found.mappings, found.tensors) == (FINE, 1, 1, 1)
    tensor.commit(0)
    assert tensor.generation > before
    assert (figures(driver).allocations, figures(driver).generations) == (0, tensor.generation - before)
    tensor.close()


@pytest.fixture(autouse=True)
def _own_figures() -> Iterator[None]:
    yield
    for device, found in metrics.snapshot().devices.items():
        if device.startswith("metered"):
            assert (found.tensors, found.reserved_bytes, found.leases) == (0, 0, 0), device
