"""The host driver's memory (D15): what was granted is zeros at first, and what was not faults or is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.helpers import Accounts, accounts, peek, poke, status_of_child
from vmmcache import (
    DriverError,
    Mapping,
    Reservation,
)
from vmmcache_host._driver import HostDriver


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


@pytest.fixture
def reservation(driver: HostDriver) -> Reservation:
    return driver.reserve(8 * driver.granule)


def backed(driver: HostDriver, reservation: Reservation, at: int = 0, granules: int = 1) -> Mapping:
    mapping = driver.map(reservation, at * driver.granule, driver.create(granules * driver.granule))
    driver.grant([mapping])
    return mapping


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_bytes_without_granted_memory_fault(driver: HostDriver, reservation: Reservation) -> None:
    """I5: reserved, mapped without access, and unmapped bytes; the bytes beside them do not."""
    granule, base = driver.granule, reservation.address

    def touch(offset: int) -> int:
        return status_of_child(lambda: poke(base + offset, b"\1"))

    assert touch(0) == touch(8 * granule - 1) == -signal.SIGSEGV
    allocation = driver.create(2 * granule)
    mapping = driver.map(reservation, granule, allocation)
    assert touch(granule) == -signal.SIGSEGV
    driver.grant([mapping])
    assert touch(granule) == touch(3 * granule - 1) == 0
    assert touch(granule - 1) == touch(3 * granule) == -signal.SIGSEGV
    driver.release(allocation)
    assert touch(granule) == 0
    driver.unmap(mapping)
    assert touch(granule) == touch(3 * granule - 1) == -signal.SIGSEGV
    driver.free(reservation)
    assert touch(0) == -signal.SIGSEGV


def test_released_memory_stays_readable_and_paid_for_until_it_is_unmapped(
    driver: HostDriver, reservation: Reservation
) -> None:
    mapping = backed(driver, reservation)
    poke(mapping.address, b"still here")
    driver.release(mapping.allocation)
    assert peek(mapping.address, 10) == b"still here"
    assert accounts(driver) == Accounts(driver.granule, files=1, descriptors=0, reservations=1, mappings=1)
    driver.unmap(mapping)
    assert accounts(driver) == Accounts(reservations=1)


def test_one_allocation_may_be_mapped_twice(driver: HostDriver, reservation: Reservation) -> None:
    one = backed(driver, reservation)
    other = driver.map(reservation, 5 * driver.granule, one.allocation)
    driver.grant([other])
    poke(one.address, b"alias")
    assert peek(other.address, 5) == b"alias"


def test_a_fresh_allocation_reads_as_zero(driver: HostDriver, reservation: Reservation) -> None:
    for _ in range(3):
        mapping = backed(driver, reservation, granules=2)
        assert peek(mapping.address, 2 * driver.granule) == bytes(2 * driver.granule)
        poke(mapping.address, b"\xff" * (2 * driver.granule))
        driver.unmap(mapping)
        driver.release(mapping.allocation)


def test_zero_copy_read_and_write_touch_exactly_their_bytes(driver: HostDriver, reservation: Reservation) -> None:
    base = backed(driver, reservation).address
    driver.write(base, b"abcdefgh")
    driver.write(base + 8, bytearray(b"ijkl"))
    driver.zero(base + 2, 3)
    driver.copy(base + 100, base + 6, 6)
    driver.synchronise()
    assert driver.read(base, 12) == bytearray(b"ab\0\0\0fghijkl")
    assert driver.read(base + 99, 8) == bytearray(b"\0ghijkl\0")


@pytest.mark.parametrize("verb", ["zero", "read", "write", "copy to", "copy from"])
@pytest.mark.parametrize("place", ["unmapped", "not granted", "past the end", "nowhere"])
def test_contents_are_touched_only_where_access_was_granted(
    driver: HostDriver, reservation: Reservation, verb: str, place: str
) -> None:
    """Refused, not a crash."""
    granted = backed(driver, reservation)
    driver.map(reservation, 4 * driver.granule, driver.create(driver.granule))
    address = {
        "unmapped": reservation.address + 2 * driver.granule,
        "not granted": reservation.address + 4 * driver.granule,
        "past the end": granted.address + driver.granule - 1,
        "nowhere": 4096,
    }[place]
    call: Callable[[], object] = {
        "zero": lambda: driver.zero(address, 2),
        "read": lambda: driver.read(address, 2),
        "write": lambda: driver.write(address, b"ab"),
        "copy to": lambda: driver.copy(address, granted.address, 2),
        "copy from": lambda: driver.copy(granted.address, address, 2),
    }[verb]
    with pytest.raises(DriverError) as caught:
        call()
    assert caught.value.name == ("EACCES" if place == "not granted" else "EFAULT")
    assert f"{address:#x}" in str(caught.value)
