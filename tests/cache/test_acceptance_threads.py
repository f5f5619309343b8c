"""Sleep, wake, resize and finalize while other threads use the slots (S11, S15). No test passes by waiting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cache.managed import CYCLES, Make
from vmmcache import KVCacheManager, SlotsExhausted, StateError
from vmmcache.units import MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib", "busy_switching")


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@contextmanager
def serving(manager: KVCacheManager, threads: int = 2) -> Iterator[list[str]]:
    """Threads that allocate, grow, suspend, resume and free; what went wrong in them."""
    wrong: list[str] = []
    stop, started = threading.Event(), threading.Barrier(threads + 1)

    def serve() -> None:
        started.wait(60)
        while not stop.is_set():
            try:
                request = manager.slots.allocate(40, 0)
            except SlotsExhausted:
                continue
            try:
                manager.slots.grow(request, 60, 40)
                manager.slots.suspend(request)
                manager.slots.resume(request)
            except SlotsExhausted:
                pass
            except StateError:
                # Somebody else has suspended it, which `sleep(revoke=True)` may.
                if not revoking:
                    wrong.append("suspended by nobody")
            manager.slots.free(request)

    revoking = True
    workers = [threading.Thread(target=serve) for _ in range(threads)]
    for worker in workers:
        worker.start()
    started.wait(60)
    try:
        yield wrong
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_sleep_by_force_always_succeeds(make: Make) -> None:
    """S11: with revoke=True there is nothing that a thread can do against it; without memory nobody gets a slot."""
    with make() as manager:
        manager.finalize()
        with serving(manager) as wrong:
            for _ in range(60):
                assert manager.sleep(revoke=True) is not None
                assert manager.slots.counts == (0, 0)
                assert manager.wake()
                assert manager.slots.counts == manager.committed
        assert not wrong


def test_sleep_without_force_says_that_requests_run(make: Make) -> None:
    """Never that slots are in the way: that is nothing that an engine has asked for."""
    with make() as manager:
        manager.finalize()
        slept = 0
        with serving(manager):
            for _ in range(100):
                try:
                    manager.sleep()
                except StateError as refusal:
                    assert "not suspended" in str(refusal)
                    assert manager.state == "ready"
                else:
                    slept += 1
                    manager.wake()
        manager.sleep()
        assert manager.state == "asleep"


def test_resize_under_load_is_all_or_nothing(make: Make) -> None:
    with make() as manager:
        manager.finalize()
        with serving(manager):
            for round in range(40):
                before = manager.committed
                try:
                    manager.resize((8 if round % 2 else 12) * MIB)
                except StateError:
                    assert manager.committed == before
                assert manager.slots.counts == manager.committed


def test_nobody_gets_a_slot_while_the_size_is_decided(make: Make) -> None:
    """What `finalize` commits is new memory: a slot that was handed out before would have none in between."""
    for _ in range(8):
        manager = make()
        manager.ensure(20)
        beyond: list[tuple[int, int]] = []
        with serving(manager, 1):
            for _ in range(20):
                try:
                    manager.finalize()
                except StateError as refusal:
                    assert "request" in str(refusal)
                    assert manager.slots.counts == manager.committed
                else:
                    break
            counts = manager.committed
            for request in manager.slots.requests:
                try:
                    for group, cycle in CYCLES.items():
                        beyond += [(group, slot) for slot in request.blocks(cycle) if slot >= counts[group]]
                except StateError:
                    pass  # freed meanwhile
        assert not beyond
        manager.close()


def test_ensure_from_another_thread_during_warm_up(make: Make) -> None:
    with make() as manager, manager.warm_up() as warm:
        grown: list[tuple[int, ...]] = []
        threads = [threading.Thread(target=lambda n=n: grown.append(manager.ensure(n))) for n in range(10, 60, 5)]
        for thread in threads:
            thread.start()
        warm.ran("mixed_step", tokens=64)
        for thread in threads:
            thread.join()
        assert len(grown) == len(threads)
        assert manager.committed == manager.slots.counts == max(grown)
        manager.finalize()
        assert manager.state == "ready"


def test_close_under_load(make: Make) -> None:
    """Requests end with the manager: their threads hear of it, and nothing is left."""
    for _ in range(10):
        manager = make()
        manager.finalize()
        heard: list[BaseException] = []

        def serve(manager: KVCacheManager = manager, heard: list[BaseException] = heard) -> None:
            try:
                while True:
                    request = manager.slots.allocate(40, 0)
                    manager.slots.free(request)
            except (StateError, SlotsExhausted) as refusal:
                heard.append(refusal)

        threads = [threading.Thread(target=serve) for _ in range(2)]
        for thread in threads:
            thread.start()
        manager.close()
        for thread in threads:
            thread.join()
        assert len(heard) == 2
        assert manager.slots.requests == ()
