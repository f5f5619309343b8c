"""What keeps memory alive: the tensor, then views that outlive it, then nobody."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest
import torch

from tests.helpers import PATIENCE_S, Accounts, JournalDriver, accounts, peek
from vmmcache import ExtensibleTensor, LeaseError, StateError
from vmmcache_host._driver import HostDriver


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


def committed(driver: HostDriver, segments: int = 1) -> ExtensibleTensor:
    tensor = ExtensibleTensor(8 * segments * driver.granule, driver, segments=segments)
    tensor.commit(2 * driver.granule)
    return tensor


# close() --------------------------------------------------------------------------------------------------------------


def test_close_with_live_views_says_how_many_and_closes_nothing(driver: HostDriver) -> None:
    """T8."""
    tensor = committed(driver)
    before = accounts(driver)
    views = [tensor.segment_view(0), tensor.view(torch.float32), tensor.segment_view(0, shape=(2, 5))]
    for left in (3, 2, 1):
        with pytest.raises(StateError, match=f"{left} live view.*before close") as caught:
            tensor.close()
        assert (caught.value.state, caught.value.event) == ("committed", "close")
        assert (accounts(driver), tensor.state) == (before, "committed")
        views.pop()
    tensor.close()
    assert accounts(driver) == Accounts()


def test_what_was_made_of_a_view_is_a_live_view_and_a_copy_is_not(driver: HostDriver) -> None:
    tensor = committed(driver)
    view = tensor.segment_view(0)
    slice_of_it, copy = view[5:10].view(5, 1), view.clone()
    del view
    with pytest.raises(StateError, match="1 live view"):
        tensor.close()
    del slice_of_it
    tensor.close()
    assert int(copy.sum()) == 0


def test_a_context_manager_closes(driver: HostDriver) -> None:
    with committed(driver) as tensor:
        assert tensor.state == "committed"
    assert tensor.state == "closed"
    assert accounts(driver) == Accounts()


def test_closing_twice_with_views_of_nothing_is_fine(driver: HostDriver) -> None:
    tensor = committed(driver)
    tensor.close()
    tensor.close()
    assert accounts(driver) == Accounts()


def test_a_sleeping_tensor_with_views_is_not_closed_either(driver: HostDriver) -> None:
    tensor = committed(driver)
    view = tensor.view()
    tensor.release_physical()
    with pytest.raises(StateError, match="1 live view") as caught:
        tensor.close()
    assert caught.value.state == "asleep"
    del view
    tensor.close()


# Collected ------------------------------------------------------------------------------------------------------------


def test_a_collected_tensor_gives_everything_back(driver: HostDriver) -> None:
    tensor = committed(driver)
    del tensor
    gc.collect()
    assert accounts(driver) == Accounts()


def test_a_tensor_in_a_cycle_gives_everything_back(driver: HostDriver) -> None:
    class Engine:
        def __init__(self) -> None:
            self.cache = committed(driver)
            self.me = self

    Engine()
    gc.collect()
    assert accounts(driver) == Accounts()


def test_a_collected_tensor_keeps_its_memory_until_the_last_view_dies(driver: HostDriver) -> None:
    """T8."""
    tensor = committed(driver)
    base, before = tensor.base_address, accounts(driver)
    one, other = tensor.segment_view(0), tensor.view()
    one[7] = 5
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None
    assert accounts(driver) == before
    assert int(other[7]) == 5
    del one
    assert accounts(driver) == before
    assert peek(base + 7, 1) == b"\5"
    del other
    assert accounts(driver) == Accounts()


def test_the_last_view_may_die_in_another_thread(driver: HostDriver) -> None:
    tensor = committed(driver)
    views = [tensor.segment_view(0)]
    del tensor
    gc.collect()
    assert accounts(driver).mappings == 1
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join(PATIENCE_S)
    assert accounts(driver) == Accounts()


def test_a_view_that_autograd_holds_keeps_the_memory(driver: HostDriver) -> None:
    tensor = committed(driver)
    leaf = tensor.segment_view(0, torch.float32, (4,)).requires_grad_()
    result = (leaf * leaf).sum()
    del leaf
    with pytest.raises(StateError, match="1 live view"):
        tensor.close()
    del tensor
    gc.collect()
    assert accounts(driver).mappings == 1
    result.backward()
    del result
    gc.collect()
    assert accounts(driver) == Accounts()


def test_a_sleeping_tensor_that_is_collected_gives_its_addresses_back(driver: HostDriver) -> None:
    tensor = committed(driver)
    view = tensor.view()
    tensor.release_physical()
    del tensor
    gc.collect()
    assert accounts(driver) == Accounts(reservations=1)
    del view
    assert accounts(driver) == Accounts()


def test_a_tensor_that_cannot_be_made_leaves_nothing(driver: HostDriver) -> None:
    with pytest.raises(ValueError, match="does not divide"):
        ExtensibleTensor(10, driver, segments=3)
    with pytest.raises(ValueError, match="chunk"):
        ExtensibleTensor(10, driver, chunk=5)
    assert accounts(driver) == Accounts()


def test_collecting_tensors_in_the_middle_of_calls_upsets_no_books(driver: HostDriver) -> None:
    """The collector runs where it likes: also inside a driver's verb, on the thread that holds the driver's lock."""
    thresholds = gc.get_threshold()
    survivor = ExtensibleTensor(32 * driver.granule, driver, segments=4)
    try:
        for number in range(200):
            gc.set_threshold(1 + number % 37, 1, 1)
            cycle: list[object] = [committed(driver)]
            cycle.append(cycle)
            del cycle
            survivor.commit([(number + segment) % 3 * driver.granule for segment in range(4)])
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    survivor.commit(0)
    assert accounts(driver) == Accounts(reservations=1)
    survivor.close()


# Leased ---------------------------------------------------------------------------------------------------------------


def test_a_lease_that_was_dropped_without_release_still_holds(driver: HostDriver) -> None:
    """C3: a NIC does not know what Python has collected."""
    tensor = committed(driver)
    tensor.lease(0, owner="forgetful")
    gc.collect()
    with pytest.raises(LeaseError) as caught:
        tensor.close()
    assert caught.value.owners == ("forgetful",)
    del caught
    assert accounts(driver).mappings == 1


def test_a_tensor_that_is_collected_while_leased_keeps_its_memory_and_says_so(
    driver: HostDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """I9, I15."""
    tensor = committed(driver)
    before = accounts(driver)
    lease = tensor.lease(0, owner="nixl")
    with caplog.at_level(logging.WARNING, logger="vmmcache"):
        del tensor
        gc.collect()
    assert "dropped while leased" in caplog.text
    assert accounts(driver) == before
    assert peek(lease.address, 4) == bytes(4)
    lease.release()
    assert accounts(driver) == Accounts()


def test_memory_goes_when_both_the_last_view_and_the_last_lease_are_gone(driver: HostDriver) -> None:
    for view_first in (True, False):
        tensor = committed(driver, segments=2)
        view, leases = tensor.view(), [tensor.lease(index, owner="nixl") for index in range(2)]
        del tensor
        gc.collect()
        if view_first:
            del view
        for lease in leases:
            assert accounts(driver).mappings == 2
            lease.release()
        if not view_first:
            assert accounts(driver).mappings == 2
            del view
        assert accounts(driver) == Accounts()


def test_nothing_of_a_closed_tensor_is_given_back_twice() -> None:
    driver = JournalDriver()
    tensor = committed(driver)
    tensor.close()
    driver.names()
    del tensor
    gc.collect()
    assert driver.names() == []
