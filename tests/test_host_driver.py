"""The host driver by itself (D15): real addresses and memory, the rules of a GPU, errors of the call that failed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.helpers import Accounts, accounts, poke, usage
from vmmcache import (
    AlignmentError,
    ConfigError,
    DriverError,
    DriverUnavailable,
    Mapping,
    OutOfDeviceMemory,
    Reservation,
    open_driver,
)
from vmmcache.units import Address, Bytes
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


def test_the_host_says_what_it_is(driver: HostDriver) -> None:
    assert (driver.name, driver.device, driver.device_type, driver.memory_kind) == ("host", "host", "cpu", "DRAM")
    assert (driver.dlpack_device, driver.torch_device) == ((1, 0), "cpu")
    assert driver.granule == 2 << 20
    assert driver.granularity().minimum in (4096, 16384, 65536)
    assert isinstance(open_driver("host"), HostDriver)
    with pytest.raises(DriverUnavailable, match="no host device 3") as caught:
        open_driver("host:3")
    assert caught.value.cure


def test_what_the_system_would_forgive_is_refused_with_call_and_code(
    driver: HostDriver, reservation: Reservation
) -> None:
    granule = driver.granule
    mapping = backed(driver, reservation, 1, 2)
    spare = driver.create(2 * granule)
    elsewhere = Reservation(Address(reservation.address + 64 * granule), Bytes(8 * granule))
    half = Reservation(reservation.address, Bytes(granule))
    part = Mapping(reservation, mapping.offset, driver.create(granule))
    refused: list[tuple[Callable[[], object], str, int]] = [
        (lambda: driver.map(reservation, 0, spare), "mmap", errno.EEXIST),
        (lambda: driver.map(reservation, 2 * granule, spare), "mmap", errno.EEXIST),
        (lambda: driver.map(elsewhere, 0, spare), "mmap", errno.EFAULT),
        (lambda: driver.unmap(part), "mmap", errno.EINVAL),
        (lambda: driver.grant([part]), "mprotect", errno.EINVAL),
        (lambda: driver.free(reservation), "munmap", errno.EBUSY),
        (lambda: driver.free(half), "munmap", errno.EINVAL),
        (lambda: driver.free(elsewhere), "munmap", errno.EINVAL),
    ]
    before = accounts(driver)
    for call, name, code in refused:
        with pytest.raises(DriverError) as caught:
            call()
        error = caught.value
        assert (error.driver, error.call, error.code, error.name) == ("host", name, code, errno.errorcode[code])
        assert accounts(driver) == before


def test_nothing_is_given_back_twice(driver: HostDriver, reservation: Reservation) -> None:
    mapping = backed(driver, reservation)
    driver.unmap(mapping)
    driver.release(mapping.allocation)
    driver.free(reservation)
    twice: list[tuple[Callable[[], object], str]] = [
        (lambda: driver.unmap(mapping), "EINVAL"),
        (lambda: driver.release(mapping.allocation), "EBADF"),
        (lambda: driver.free(reservation), "EINVAL"),
        (lambda: driver.export_handle(mapping.allocation, "posix_fd"), "EBADF"),
    ]
    for call, name in twice:
        with pytest.raises(DriverError) as caught:
            call()
        assert caught.value.name == name
    again = driver.reserve(driver.granule)
    with pytest.raises(DriverError, match="released before"):
        driver.map(again, 0, mapping.allocation)
    driver.free(again)
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("nbytes", [1, 4096, (2 << 20) - 1, (2 << 20) + 4096])
def test_sizes_and_offsets_off_the_granule_are_refused(
    driver: HostDriver, reservation: Reservation, nbytes: int
) -> None:
    with pytest.raises(AlignmentError, match=str(nbytes)):
        driver.reserve(nbytes)
    with pytest.raises(AlignmentError, match=str(nbytes)):
        driver.create(nbytes)
    with pytest.raises(AlignmentError, match=str(nbytes)):
        driver.map(reservation, nbytes, driver.create(driver.granule))


@pytest.mark.parametrize("nbytes", [0, -1, -(2 << 20), 1.0, float("nan"), None, True], ids=repr)
def test_sizes_that_are_none_are_refused_by_name(driver: HostDriver, nbytes: int) -> None:
    for call in (driver.reserve, driver.create):
        with pytest.raises(ConfigError, match=r"^nbytes="):
            call(nbytes)
    assert accounts(driver) == Accounts()


def test_runs_to_grant_are_adjacent_and_not_empty(driver: HostDriver, reservation: Reservation) -> None:
    run = [driver.map(reservation, place * driver.granule, driver.create(driver.granule)) for place in (0, 1, 3)]
    for bad in ([], [run[0], run[2]], [run[1], run[0]]):
        with pytest.raises(ConfigError, match=r"^run="):
            driver.grant(bad)
    driver.grant(run[:2])
    poke(run[0].address, b"\1" * 2 * driver.granule)


@pytest.mark.parametrize("offset", [-2, 7, 8])
def test_a_mapping_lies_inside_its_reservation(driver: HostDriver, reservation: Reservation, offset: int) -> None:
    with pytest.raises(ConfigError, match=r"^offset=.*past the reservation"):
        driver.map(reservation, offset * driver.granule, driver.create(2 * driver.granule))


# What it costs --------------------------------------------------------------------------------------------------------


def test_reservations_lie_on_granules_and_apart(driver: HostDriver) -> None:
    made = sorted((driver.reserve(3 * driver.granule) for _ in range(50)), key=lambda each: each.address)
    assert all(each.address % driver.granule == 0 for each in made)
    for before, after in pairwise(made):
        assert before.address + before.nbytes <= after.address
    for each in made:
        driver.free(each)
    assert accounts(driver) == Accounts()


def test_memory_that_does_not_exist_is_an_error_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "10MiB")
    driver = HostDriver()
    allocations = [driver.create(4 << 20), driver.create(4 << 20)]
    before = usage()
    with pytest.raises(OutOfDeviceMemory, match=r"4 MiB: 2 MiB of 10 MiB are free.*VMMCACHE_HOST_MEMORY") as caught:
        driver.create(4 << 20)
    error = caught.value
    assert (error.requested, error.free, error.call, error.name) == (4 << 20, 2 << 20, "memfd_create", "ENOMEM")
    assert usage() == before
    driver.release(allocations.pop())
    driver.release(driver.create(6 << 20))
    assert driver.memory_info().free == 6 << 20


def test_the_kernel_agrees_with_the_books(driver: HostDriver, reservation: Reservation) -> None:
    """I3."""
    before = usage()
    mappings = [backed(driver, reservation, place) for place in (0, 2, 4)]
    assert usage() == (before.descriptors + 3, before.mappings + 3)
    for mapping in mappings:
        driver.unmap(mapping)
        driver.release(mapping.allocation)
    assert usage() == before
