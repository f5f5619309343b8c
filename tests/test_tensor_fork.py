"""Fork: a child is told that the memory is its parent's, changes nothing, and never hangs."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator

import pytest

import vmmcache
from tests.helpers import PATIENCE_S, GatedDriver, accounts, begin_child, peek, poke
from vmmcache import ExtensibleTensor, StateError

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def in_child(function: Callable[[], object]) -> object:
    """What a function returns, or the error that it raises, in a forked child that then ends without a word."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        begin_child()
        try:
            answer = function()
        except vmmcache.VmmCacheError as error:
            answer = error
        finally:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"the child ended with {status}"
    return pickle.loads(data)


@pytest.fixture
def driver() -> GatedDriver:
    return GatedDriver()


@pytest.fixture
def tensor(driver: GatedDriver) -> Iterator[ExtensibleTensor]:
    made = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    made.commit(2 * driver.granule)
    made.commit(3 * driver.granule)
    yield made
    made.close()


CALLS: dict[str, Callable[[ExtensibleTensor], object]] = {
    "grow": lambda tensor: tensor.commit(5 * tensor.granule),
    "grow inside a granule": lambda tensor: tensor.commit([3 * tensor.granule, 3 * tensor.granule]),
    "shrink": lambda tensor: tensor.commit(2 * tensor.granule),
    "shrink inside an allocation": lambda tensor: tensor.commit(3 * tensor.granule - 1),
    "shrink to nothing": lambda tensor: tensor.commit(0),
    "defragment": lambda tensor: tensor.commit(3 * tensor.granule, defragment=True),
    "defragment and keep": lambda tensor: tensor.commit(3 * tensor.granule, defragment=True, keep=True),
    "sleep": lambda tensor: tensor.release_physical(),
    "sleep with a backup": lambda tensor: tensor.release_physical(backup=True),
    "close": lambda tensor: tensor.close(),
    "lease": lambda tensor: tensor.lease(0, owner="nixl"),
}


def state(tensor: ExtensibleTensor) -> tuple[object, ...]:
    return tensor.state, tensor.committed, tensor.generation, tensor.base_address


@pytest.mark.parametrize("name", CALLS)
def test_a_child_is_refused_and_its_copy_stays_as_it_was(tensor: ExtensibleTensor, name: str) -> None:
    def attempt() -> object:
        before = state(tensor)
        try:
            CALLS[name](tensor)
        except StateError as error:
            return error, state(tensor) == before, accounts(driver)  # type: ignore[arg-type]  # the fixture's
        return None

    driver = tensor.driver
    parents = accounts(driver)  # type: ignore[arg-type]  # the fixture's
    answer = in_child(attempt)
    assert isinstance(answer, tuple), "nothing was refused"
    error, unchanged, childs = answer
    assert isinstance(error, StateError)
    assert error.state == "forked"
    for part in (str(os.getpid()), "before a fork", "spawn"):
        assert part in str(error)
    assert unchanged
    assert childs == parents


def test_a_child_cannot_wake_a_sleeping_tensor(tensor: ExtensibleTensor) -> None:
    tensor.release_physical(backup=True)
    error = in_child(tensor.restore)
    assert isinstance(error, StateError)
    assert error.state == "forked"
    assert in_child(lambda: tensor.state) == "asleep"
    tensor.restore()


def test_a_child_can_close_nothing_that_is_empty_either(driver: GatedDriver) -> None:
    tensor = ExtensibleTensor(driver.granule, driver)
    assert isinstance(in_child(tensor.close), StateError)
    tensor.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_child_does_not_hang_on_a_lock_that_a_thread_of_its_parent_held(
    driver: GatedDriver, tensor: ExtensibleTensor, name: str
) -> None:
    """The thread is not there in the child, and would never give the lock back."""
    driver.gate.clear()
    driver.waiting.clear()
    thread = threading.Thread(target=tensor.commit, args=(5 * driver.granule,))
    thread.start()
    try:
        assert driver.waiting.wait(PATIENCE_S)
        error = in_child(lambda: CALLS[name](tensor))
    finally:
        driver.gate.set()
        thread.join(PATIENCE_S)
    assert isinstance(error, StateError)
    assert error.state == "forked"


def test_the_parent_notices_nothing_of_what_children_try(tensor: ExtensibleTensor) -> None:
    poke(tensor.base_address, b"mine")
    before = state(tensor), tensor.allocations
    view = tensor.segment_view(0)

    def drop_everything() -> None:
        nonlocal view
        del view
        for call in CALLS.values():
            try:
                call(tensor)
            except StateError:
                continue
        gc.collect()

    in_child(drop_everything)
    assert (state(tensor), tensor.allocations) == before
    assert peek(tensor.base_address, 4) == b"mine"
    tensor.commit(5 * tensor.granule)
    view[0] = 1
    del view


def test_a_view_that_dies_in_a_child_leaves_the_parents_memory_alone(driver: GatedDriver) -> None:
    tensor = ExtensibleTensor(driver.granule, driver)
    tensor.commit(10)
    views = [tensor.view()]
    del tensor
    gc.collect()
    before = accounts(driver)
    in_child(views.clear)
    assert accounts(driver) == before
    views[0][3] = 1
    views.clear()
    assert accounts(driver).reservations == 0


def test_a_child_that_opens_the_device_itself_can_use_it() -> None:
    vmmcache.open_driver("host")

    def own() -> object:
        with ExtensibleTensor(1 << 30) as tensor:
            tensor.commit(5)
            return peek(tensor.base_address, 5)

    assert in_child(own) == bytes(5)
