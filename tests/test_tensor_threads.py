"""Threads: each method is done as a whole before another begins, and leases go back while a commit is waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.helpers import PATIENCE_S, Accounts, GatedDriver, accounts, peek, poke
from vmmcache import Allocation, ExtensibleTensor, LeaseError, RegistrationLease
from vmmcache_host._driver import HostDriver


class CrowdedDriver(HostDriver):
    """Counts threads that are between the first and the last call of one tensor's growth at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: set[int] = set()
        self.met = threading.Event()

    def _create(self, nbytes: int) -> Allocation:
        self.inside.add(threading.get_ident())
        if len(self.inside) > 1:
            self.met.set()
        # Gives the other thread the time to come in, if it can. Nothing is judged by how long this takes.
        self.met.wait(0.05)
        return super()._create(nbytes)

    def _grant(self, address: int, nbytes: int) -> None:
        super()._grant(address, nbytes)
        self.inside.discard(threading.get_ident())


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def wait_all(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result(PATIENCE_S)


def test_no_growth_begins_before_another_is_done(threads: ThreadPoolExecutor) -> None:
    driver = CrowdedDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    wait_all([threads.submit(tensor.commit, size * driver.granule) for size in (3, 7)])
    assert not driver.met.is_set()
    assert tensor.committed[0] // driver.granule in (3, 7)
    tensor.close()


def test_many_commits_from_eight_threads_leave_one_of_their_sizes(threads: ThreadPoolExecutor) -> None:
    driver = HostDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver, segments=4)
    sizes = [step * driver.granule // 4 for step in range(8)]

    def work(number: int) -> None:
        for step in range(30):
            tensor.commit(sizes[(number + step) % 8], defragment=step % 10 == 0, keep=step % 20 == 0)

    wait_all([threads.submit(work, number) for number in range(8)])
    assert len(set(tensor.committed)) == 1
    assert tensor.committed[0] in sizes
    assert tensor.physical_bytes == accounts(driver).used
    places = sorted((each.base, each.base + each.nbytes) for each in tensor.registrable())
    assert all(stop <= start for (_, stop), (start, _) in pairwise(places))
    tensor.close()
    assert accounts(driver) == Accounts()


def test_views_are_made_and_dropped_in_threads_while_the_tensor_grows(threads: ThreadPoolExecutor) -> None:
    driver = HostDriver()
    tensor = ExtensibleTensor(64 * driver.granule, driver, segments=2)
    tensor.commit(10)
    poke(tensor.base_address, b"0123456789")

    def look() -> None:
        for _ in range(50):
            view = tensor.segment_view(0)
            assert view.untyped_storage().nbytes() >= 10
            assert bytes(view[:10].tolist()) == b"0123456789"

    looking = [threads.submit(look) for _ in range(2)]
    for step in range(50):
        tensor.commit(10 + step * driver.granule // 4)
    wait_all(looking)
    tensor.close()
    assert accounts(driver) == Accounts()


def test_two_tensors_of_one_driver_grow_at_the_same_time(threads: ThreadPoolExecutor) -> None:
    driver = HostDriver()
    tensors = [ExtensibleTensor(4 * driver.granule, driver) for _ in range(8)]

    def work(tensor: ExtensibleTensor, number: int) -> None:
        for step in range(30):
            tensor.commit((step * 3 + number) % 5 * driver.granule)
            if tensor.committed_bytes:
                poke(tensor.base_address, bytes([number]) * 100)
            if step % 10 == 9:
                tensor.release_physical(backup=True)
                tensor.restore()
            if tensor.committed_bytes:
                assert peek(tensor.base_address, 100) == bytes([number]) * 100

    wait_all([threads.submit(work, tensor, number) for number, tensor in enumerate(tensors)])
    for tensor in tensors:
        tensor.close()
    assert accounts(driver) == Accounts()


def test_a_lease_is_released_while_a_commit_is_waiting_for_the_driver(threads: ThreadPoolExecutor) -> None:
    driver = GatedDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(5)
    lease = tensor.lease(0, owner="nixl")
    driver.gate.clear()
    driver.waiting.clear()
    growing = threads.submit(tensor.commit, 2 * driver.granule)
    assert driver.waiting.wait(PATIENCE_S)
    threads.submit(lease.release).result(PATIENCE_S)
    assert not growing.done()
    assert not lease.valid
    driver.gate.set()
    growing.result(PATIENCE_S)
    tensor.close()


def test_an_owner_may_use_the_tensor_from_a_thread_of_its_own_while_it_lets_go(threads: ThreadPoolExecutor) -> None:
    """Callbacks run outside the tensor's lock, or this would hang."""
    driver = HostDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(2 * driver.granule)

    def let_go(lease: RegistrationLease) -> None:
        assert threads.submit(lambda: tensor.registrable()[0].base).result(PATIENCE_S) == lease.address
        threads.submit(lease.release).result(PATIENCE_S)

    lease = tensor.lease(0, owner="nixl", on_revoke=let_go)
    tensor.commit(0, revoke=True)
    assert not lease.valid
    assert tensor.physical_bytes == 0
    tensor.close()


def test_of_a_lease_and_a_shrink_at_the_same_time_one_wins_whole(threads: ThreadPoolExecutor) -> None:
    """I9: never a lease on bytes that went away."""
    driver = HostDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    for _ in range(100):
        tensor.commit(4 * driver.granule)
        start = threading.Barrier(2)

        def take(barrier: threading.Barrier = start) -> RegistrationLease:
            barrier.wait(PATIENCE_S)
            return tensor.lease(0, owner="nixl")

        def cut(barrier: threading.Barrier = start) -> bool:
            barrier.wait(PATIENCE_S)
            try:
                tensor.commit(driver.granule)
            except LeaseError:
                return False
            return True

        taking, cutting = threads.submit(take), threads.submit(cut)
        lease, was_cut = taking.result(PATIENCE_S), cutting.result(PATIENCE_S)
        assert lease.nbytes == (driver.granule if was_cut else 4 * driver.granule)
        assert tensor.committed == (lease.nbytes,)
        lease.release()
    tensor.close()


@pytest.mark.parametrize("operation", ["commit", "release_physical", "close"])
def test_whoever_asks_twice_at_once_gets_it_once(threads: ThreadPoolExecutor, operation: str) -> None:
    driver = HostDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(2 * driver.granule)
    call: Callable[[], None] = {
        "commit": lambda: tensor.commit(0),
        "release_physical": tensor.release_physical,
        "close": tensor.close,
    }[operation]
    wait_all([threads.submit(call) for _ in range(8)])
    assert accounts(driver).used == 0
    tensor.close()
    assert accounts(driver) == Accounts()
