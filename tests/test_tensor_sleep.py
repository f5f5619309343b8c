"""release_physical() and restore(): memory goes and comes back, addresses, shape and views stay."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.helpers import Accounts, DirtyDriver, JournalDriver, accounts, peek, poke, status_of_child, usage
from vmmcache import ExtensibleTensor, OutOfDeviceMemory, StaleSegment, StateError
from vmmcache_host._driver import HostDriver


@pytest.fixture
def driver() -> JournalDriver:
    return JournalDriver()


@pytest.fixture
def tensor(driver: JournalDriver) -> ExtensibleTensor:
    """Two segments of 8 granules, in allocations of 1 and 2 granules each, the last byte not on a granule."""
    made = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    made.commit(driver.granule)
    made.commit(3 * driver.granule - 7)
    driver.names()
    return made


def sizes(tensor: ExtensibleTensor) -> list[int]:
    return [allocation.nbytes // tensor.granule for allocation in tensor.allocations]


def test_asleep_no_memory_is_held(driver: JournalDriver, tensor: ExtensibleTensor) -> None:
    """T7."""
    before = usage()
    tensor.release_physical()
    assert (tensor.state, tensor.committed, tensor.physical_bytes) == ("asleep", (0, 0), 0)
    assert (tensor.allocations, tensor.registrable()) == ((), ())
    assert accounts(driver) == Accounts(reservations=1)
    assert usage() == (before.descriptors - 4, before.mappings - 4)
    tensor.close()


def test_the_same_sizes_come_back_in_the_same_allocations(driver: JournalDriver, tensor: ExtensibleTensor) -> None:
    """I10."""
    before = [(each.base, each.nbytes, each.allocation_nbytes) for each in tensor.registrable()]
    base = tensor.base_address
    tensor.release_physical()
    tensor.restore()
    assert (tensor.state, tensor.committed) == ("committed", (3 * driver.granule - 7,) * 2)
    assert [(each.base, each.nbytes, each.allocation_nbytes) for each in tensor.registrable()] == before
    assert (tensor.base_address, sizes(tensor)) == (base, [1, 2, 1, 2])
    tensor.close()


def test_a_straddling_allocation_comes_back_without_what_was_cut(driver: JournalDriver) -> None:
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(6 * driver.granule)
    tensor.commit(driver.granule + 1)
    assert sizes(tensor) == [6]
    tensor.release_physical()
    tensor.restore()
    assert (tensor.committed, sizes(tensor)) == ((driver.granule + 1,), [2])
    tensor.close()


def test_contents_are_gone_without_a_backup(tensor: ExtensibleTensor) -> None:
    poke(tensor.base_address, b"gone")
    tensor.release_physical()
    tensor.restore()
    assert peek(tensor.base_address, tensor.committed[0]) == bytes(tensor.committed[0])
    tensor.close()


@pytest.mark.parametrize("kind", [HostDriver, DirtyDriver])
def test_a_backup_brings_every_visible_byte_back(kind: type[HostDriver]) -> None:
    """T7."""
    driver = kind()
    half = 3 * driver.granule // 2
    tensor = ExtensibleTensor(4 * half, driver, segments=[half, half, 2 * half])
    tensor.commit([half, half - 3, 5])
    contents = []
    for number, (offset, nbytes) in enumerate(zip(tensor.segment_offsets, tensor.committed, strict=True)):
        contents.append(bytes([number + 1]) * nbytes)
        poke(tensor.base_address + offset, contents[-1])
    tensor.release_physical(backup=True)
    assert accounts(driver).used == 0
    tensor.restore()
    for offset, expected in zip(tensor.segment_offsets, contents, strict=True):
        assert peek(tensor.base_address + offset, len(expected)) == expected
    tensor.close()


def test_a_backup_serves_once(tensor: ExtensibleTensor) -> None:
    poke(tensor.base_address, b"once")
    tensor.release_physical(backup=True)
    tensor.restore()
    tensor.release_physical()
    tensor.restore()
    assert peek(tensor.base_address, 4) == bytes(4)
    tensor.close()


def test_a_backup_waits_for_the_device_before_it_copies(driver: JournalDriver, tensor: ExtensibleTensor) -> None:
    """I8."""
    tensor.release_physical(backup=True)
    calls = driver.names()
    assert calls[0] == "synchronise"
    assert calls.count("unmap") == calls.count("release") == 4
    tensor.close()


def test_falling_asleep_is_one_wait_and_two_calls_an_allocation(
    driver: JournalDriver, tensor: ExtensibleTensor
) -> None:
    """I8, B2."""
    tensor.release_physical()
    assert driver.names() == ["synchronise", *["unmap", "release"] * 4]
    tensor.close()


def test_asleep_twice_is_asleep_and_keeps_the_backup(driver: JournalDriver, tensor: ExtensibleTensor) -> None:
    poke(tensor.base_address, b"kept")
    tensor.release_physical(backup=True)
    driver.names()
    tensor.release_physical()
    assert driver.names() == []
    tensor.restore()
    assert peek(tensor.base_address, 4) == b"kept"
    tensor.close()


@pytest.mark.parametrize("event", ["commit", "lease"])
def test_asleep_nothing_can_be_committed_or_leased(driver: JournalDriver, tensor: ExtensibleTensor, event: str) -> None:
    tensor.release_physical()
    driver.names()
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: tensor.commit(5),
        "lease": lambda: tensor.lease(0, owner="nixl"),
    }
    with pytest.raises(StateError, match=r"asleep.*restore\(\) first") as caught:
        calls[event]()
    assert (caught.value.state, caught.value.event) == ("asleep", event)
    assert driver.names() == []
    assert tensor.state == "asleep"
    tensor.close()


def test_awake_nothing_can_be_restored(tensor: ExtensibleTensor) -> None:
    with pytest.raises(StateError, match=r"committed.*the memory is there already"):
        tensor.restore()
    tensor.close()


def test_a_tensor_that_never_had_memory_sleeps_and_wakes_without(driver: JournalDriver) -> None:
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    with pytest.raises(StateError, match=r"reserved.*commit memory instead"):
        tensor.restore()
    tensor.release_physical(backup=True)
    tensor.restore()
    assert (tensor.state, tensor.committed) == ("committed", (0,))
    assert driver.names() == []
    tensor.close()


def test_descriptors_are_stale_after_a_sleep_at_the_same_address(tensor: ExtensibleTensor) -> None:
    """C4."""
    described = tensor.registrable()
    tensor.release_physical()
    for each in described:
        with pytest.raises(StaleSegment):
            tensor.check(each)
    tensor.restore()
    for each, again in zip(described, tensor.registrable(), strict=True):
        assert (each.base, each.nbytes) == (again.base, again.nbytes)
        assert each.allocation_id != again.allocation_id
        with pytest.raises(StaleSegment):
            tensor.check(each)
        tensor.check(again)
    tensor.close()


def test_views_keep_their_address_through_sleep_and_wake(tensor: ExtensibleTensor) -> None:
    """T7."""
    view, segment = tensor.view(), tensor.segment_view(1)
    tensor.release_physical()
    tensor.restore()
    segment[3] = 9
    assert view.data_ptr() == tensor.base_address
    assert int(view[tensor.segment_offsets[1] + 3]) == 9
    del view, segment
    tensor.close()


def test_asleep_a_view_can_be_made_of_the_addresses_and_is_empty_of_a_segment(tensor: ExtensibleTensor) -> None:
    """I6: nothing is committed now."""
    tensor.release_physical()
    view, segment = tensor.view(), tensor.segment_view(1)
    assert view.untyped_storage().nbytes() == tensor.capacity
    assert segment.untyped_storage().nbytes() == 0
    tensor.restore()
    view[0] = 1
    assert int(tensor.segment_view(0)[0]) == 1
    del view, segment
    tensor.close()


def test_without_memory_a_tensor_stays_asleep_and_a_later_wake_succeeds(
    monkeypatch: pytest.MonkeyPatch, driver: JournalDriver, tensor: ExtensibleTensor
) -> None:
    """S11, I4: one granule less than it takes."""
    poke(tensor.base_address, b"kept")
    tensor.release_physical(backup=True)
    before = accounts(driver)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(5 * driver.granule))
    with pytest.raises(OutOfDeviceMemory):
        tensor.restore()
    assert (tensor.state, tensor.committed, accounts(driver)) == ("asleep", (0, 0), before)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(6 * driver.granule))
    tensor.restore()
    assert sizes(tensor) == [1, 2, 1, 2]
    assert peek(tensor.base_address, 4) == b"kept"
    tensor.close()


def test_a_sleeping_tensor_can_be_closed(driver: JournalDriver, tensor: ExtensibleTensor) -> None:
    tensor.release_physical(backup=True)
    tensor.close()
    assert accounts(driver) == Accounts()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_touching_a_view_of_a_sleeping_tensor_faults(tensor: ExtensibleTensor) -> None:
    """And does not read somebody else's memory, or none."""
    views = [tensor.view(), tensor.segment_view(0)]
    touches: list[Callable[[], object]] = [lambda: views[0][0].item(), lambda: views[1][-1].zero_()]
    for touch in touches:
        assert status_of_child(touch) == 0
    tensor.release_physical()
    for touch in touches:
        assert status_of_child(touch) == -signal.SIGSEGV
    tensor.restore()
    for touch in touches:
        assert status_of_child(touch) == 0
    views.clear()
    tensor.close()
