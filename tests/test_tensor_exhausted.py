"""Memory runs out at every step of every operation: a typed error with the numbers, and the state as before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.helpers import Accounts, accounts, peek, poke
from vmmcache import ExtensibleTensor, OutOfDeviceMemory
from vmmcache.errors import DriverError
from vmmcache_host._driver import HostDriver

SEGMENTS = 4


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


def allow(monkeypatch: pytest.MonkeyPatch, driver: HostDriver, granules: int) -> None:
    """Let the driver give this many granules in all, and a byte, because nothing at all is no size of memory."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(granules * driver.granule + 1))


def snapshot(tensor: ExtensibleTensor, driver: HostDriver) -> tuple[object, ...]:
    return tensor.state, tensor.committed, tensor.generation, tensor.allocations, tensor.registrable(), accounts(driver)


@pytest.mark.parametrize("missing", range(1, SEGMENTS + 1))
@pytest.mark.parametrize("before", [0, 1, 2])
def test_growth_that_runs_out_in_any_segment_changes_none(
    monkeypatch: pytest.MonkeyPatch, driver: HostDriver, before: int, missing: int
) -> None:
    """I4, T4: all segments or none, and a retry succeeds."""
    tensor = ExtensibleTensor(8 * SEGMENTS * driver.granule, driver, segments=SEGMENTS)
    tensor.commit(before * driver.granule)
    for offset in tensor.segment_offsets if before else ():
        poke(tensor.base_address + offset, b"kept")
    untouched = snapshot(tensor, driver)
    grown = before + 1
    allow(monkeypatch, driver, grown * SEGMENTS - missing)
    with pytest.raises(OutOfDeviceMemory) as caught:
        tensor.commit(grown * driver.granule)
    error = caught.value
    mapped = (grown * SEGMENTS - missing) * driver.granule
    assert (error.driver, error.call, error.requested) == ("host", "memfd_create", driver.granule)
    assert (error.free, error.committed) == (1, mapped)
    assert isinstance(error, MemoryError)
    assert "VMMCACHE_HOST_MEMORY" in str(error)
    assert snapshot(tensor, driver) == untouched
    for offset in tensor.segment_offsets if before else ():
        assert peek(tensor.base_address + offset, 4) == b"kept"
    allow(monkeypatch, driver, grown * SEGMENTS)
    tensor.commit(grown * driver.granule)
    assert tensor.committed == (grown * driver.granule,) * SEGMENTS
    tensor.close()
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("granules", range(6))
def test_a_run_of_chunks_is_had_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, driver: HostDriver, granules: int
) -> None:
    tensor = ExtensibleTensor(8 * driver.granule, driver, chunk=driver.granule)
    tensor.commit(0)
    untouched = snapshot(tensor, driver)
    allow(monkeypatch, driver, granules)
    with pytest.raises(OutOfDeviceMemory):
        tensor.commit(6 * driver.granule)
    assert snapshot(tensor, driver) == untouched
    tensor.close()


def exchanging(targets: Sequence[int], *, keep: bool) -> Callable[[ExtensibleTensor], None]:
    return lambda tensor: tensor.commit([size * tensor.granule for size in targets], defragment=True, keep=keep)


@pytest.mark.parametrize("room", range(12))
@pytest.mark.parametrize("targets", [(2, 2), (3, 3), (1, 4), (4, 1)], ids=str)
def test_an_exchange_that_runs_out_loses_no_kept_byte_and_finishes_later(
    monkeypatch: pytest.MonkeyPatch, driver: HostDriver, targets: tuple[int, int], room: int
) -> None:
    """T6 with keep: each segment is exchanged whole or left as it was."""
    tensor = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    for granules in (1, 2):
        tensor.commit(granules * driver.granule)
    for index, offset in enumerate(tensor.segment_offsets):
        poke(tensor.base_address + offset, bytes([index + 1]) * (2 * driver.granule))
    exchange = exchanging(targets, keep=True)
    allow(monkeypatch, driver, room)
    try:
        exchange(tensor)
    except OutOfDeviceMemory:
        for granules, target in zip(tensor.committed, targets, strict=True):
            assert granules in (2 * driver.granule, min(2, target) * driver.granule)
    for index, (offset, nbytes) in enumerate(zip(tensor.segment_offsets, tensor.committed, strict=True)):
        kept = min(nbytes, targets[index] * driver.granule, 2 * driver.granule)
        assert peek(tensor.base_address + offset, kept) == bytes([index + 1]) * kept
    assert tensor.physical_bytes == accounts(driver).used
    allow(monkeypatch, driver, 64)
    exchange(tensor)
    assert tensor.committed == tuple(granules * driver.granule for granules in targets)
    assert [each.nbytes // driver.granule for each in tensor.allocations] == list(targets)
    tensor.close()
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("room", range(6))
def test_a_rebuild_that_runs_out_says_what_is_left_and_finishes_later(
    monkeypatch: pytest.MonkeyPatch, driver: HostDriver, room: int
) -> None:
    """T6 without keep: the named exception to I4."""
    tensor = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    for granules in (1, 2):
        tensor.commit(granules * driver.granule)
    rebuild = exchanging((3, 4), keep=False)
    allow(monkeypatch, driver, room)
    with pytest.raises(OutOfDeviceMemory):
        rebuild(tensor)
    for index, nbytes in enumerate(tensor.committed):
        # What is said to be committed can be touched to the last byte.
        assert nbytes in (0, driver.granule, 2 * driver.granule, 3 * driver.granule)
        poke(tensor.base_address + tensor.segment_offsets[index], b"\1" * nbytes)
    assert tensor.physical_bytes == accounts(driver).used
    allow(monkeypatch, driver, 7)
    rebuild(tensor)
    assert [each.nbytes // driver.granule for each in tensor.allocations] == [3, 4]
    tensor.close()
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("room", range(1, 6))
def test_a_wake_that_runs_out_sleeps_on(monkeypatch: pytest.MonkeyPatch, driver: HostDriver, room: int) -> None:
    """S11."""
    tensor = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    for granules in (1, 3):
        tensor.commit(granules * driver.granule)
    poke(tensor.base_address, b"kept")
    tensor.release_physical(backup=True)
    asleep = accounts(driver)
    allow(monkeypatch, driver, room)
    with pytest.raises(OutOfDeviceMemory):
        tensor.restore()
    assert (tensor.state, tensor.physical_bytes, accounts(driver)) == ("asleep", 0, asleep)
    allow(monkeypatch, driver, 6)
    tensor.restore()
    assert peek(tensor.base_address, 4) == b"kept"
    tensor.close()
    assert accounts(driver) == Accounts()


def test_addresses_that_are_not_to_be_had_are_an_error_with_the_number(driver: HostDriver) -> None:
    with pytest.raises(DriverError, match=r"bytes.*Address space") as caught:
        ExtensibleTensor(1 << 47, driver)
    assert (caught.value.driver, caught.value.call, caught.value.name) == ("host", "mmap", "ENOMEM")
    assert accounts(driver) == Accounts()
