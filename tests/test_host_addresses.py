"""The host's addresses and descriptors as the kernel sees them: aligned, no more than asked for, none left behind."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import accounts, usage
from vmmcache import DriverError
from vmmcache.units import GIB, KIB


def address_space() -> int:
    """Bytes of addresses that this process holds."""
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith("VmSize:"))


@pytest.fixture
def small_files() -> Iterator[int]:
    """A limit on the size of files, for as long as the test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FINE, before[1]))
    yield FINE
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_every_reservation_begins_on_a_granule() -> None:
    """The kernel aligns by itself to a page only, and to 2 MiB where it likes to."""
    driver = FineHostDriver()
    reservations = [driver.reserve(count * FINE) for count in range(1, 33)]
    assert [reservation.address % FINE for reservation in reservations] == [0] * len(reservations)
    for reservation in reservations:
        driver.free(reservation)


def test_a_reservation_takes_the_addresses_that_were_asked_for_and_no_more() -> None:
    driver = FineHostDriver()
    # A granule as large as the reservation itself: what aligning costs in between would be seen.
    vars(driver)["granule"] = GIB
    before = address_space()
    reservations = [driver.reserve(GIB) for _ in range(8)]
    assert address_space() - before < 9 * GIB
    for reservation in reservations:
        driver.free(reservation)
    assert address_space() - before < GIB


def test_a_file_that_cannot_be_made_large_enough_leaves_no_descriptor(small_files: int) -> None:
    driver = FineHostDriver()
    before = usage()
    with pytest.raises(DriverError, match="ftruncate") as refused:
        driver.create(2 * small_files)
    assert (refused.value.call, refused.value.name) == ("ftruncate", "EFBIG")
    assert (usage(), accounts(driver)) == (before, accounts(FineHostDriver()))


def test_bytes_beyond_a_hole_are_not_taken_for_mapped() -> None:
    driver = FineHostDriver()
    reservation = driver.reserve(3 * FINE)
    for place in (0, 2):
        driver.grant([driver.map(reservation, place * FINE, driver.create(FINE))])
    for start, granules in ((0, 3), (0, 2), (1, 2)):
        with pytest.raises(DriverError, match="not all of it is mapped"):
            driver.zero(reservation.address + start * FINE, granules * FINE)
