"""Allocations of the host are descriptors that another process maps: the same bytes, and one that pays (D15)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.helpers import PATIENCE_S, Accounts, accounts, peek, poke
from vmmcache import ConfigError, DriverError, DriverUnavailable, ExtensibleTensor
from vmmcache_host._driver import HostDriver

PEER = """
import os, sys
import ctypes
from vmmcache import open_driver
driver = open_driver("host")
fd, nbytes = int(sys.argv[1]), int(sys.argv[2])
allocation = driver.import_handle(fd, "posix_fd", nbytes)
os.close(fd)
reservation = driver.reserve(nbytes)
mapping = driver.map(reservation, 0, allocation)
driver.grant([mapping])
driver.write(mapping.address + nbytes - 5, b"reply")
print(bytes(driver.read(mapping.address, 5)).decode(), flush=True)
sys.stdin.readline()
print(bytes(driver.read(mapping.address, 5)).decode())
driver.unmap(mapping); driver.release(allocation); driver.free(reservation)
"""


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


@pytest.fixture
def tensor(driver: HostDriver) -> Iterator[ExtensibleTensor]:
    with ExtensibleTensor(8 * driver.granule, driver) as made:
        made.commit(2 * driver.granule)
        yield made


def test_another_process_sees_the_same_bytes_in_both_directions(driver: HostDriver, tensor: ExtensibleTensor) -> None:
    """And keeps them when the one that made them has given them back."""
    (allocation,) = tensor.allocations
    poke(tensor.base_address, b"hello")
    fd = driver.export_handle(allocation, "posix_fd")
    assert isinstance(fd, int)
    arguments = [sys.executable, "-c", PEER, str(fd), str(allocation.nbytes)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[fd]) as peer:
        os.close(fd)
        assert peer.stdout is not None
        assert peer.stdout.readline() == "hello\n"
        assert peek(tensor.base_address + allocation.nbytes - 5, 5) == b"reply"
        poke(tensor.base_address, b"later")
        tensor.commit(0)
        assert accounts(driver) == Accounts(reservations=1)
        rest, _ = peer.communicate("\n", timeout=PATIENCE_S)
    assert (rest, peer.returncode) == ("later\n", 0)


def test_an_exported_descriptor_is_the_callers_and_no_childs(driver: HostDriver, tensor: ExtensibleTensor) -> None:
    (allocation,) = tensor.allocations
    one, other = (driver.export_handle(allocation, "posix_fd") for _ in range(2))
    assert isinstance(one, int)
    assert isinstance(other, int)
    assert one != other
    assert not os.get_inheritable(one)
    os.close(one)
    assert os.fstat(other).st_size == allocation.nbytes
    os.close(other)
    assert accounts(driver).descriptors == 1


def test_what_was_imported_costs_nothing_here(monkeypatch: pytest.MonkeyPatch, tensor: ExtensibleTensor) -> None:
    (allocation,) = tensor.allocations
    fd = tensor.driver.export_handle(allocation, "posix_fd")
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "2MiB")
    importer = HostDriver()
    imported = importer.import_handle(fd, "posix_fd", allocation.nbytes)
    assert accounts(importer) == Accounts(used=0, files=1, descriptors=1)
    assert importer.memory_info().free == 2 << 20
    assert imported.id != allocation.id
    importer.release(imported)
    assert accounts(importer) == Accounts()
    # The descriptor that was given stays the caller's.
    assert isinstance(fd, int)
    os.close(fd)


@pytest.mark.parametrize("granules", [1, 3])
def test_an_import_of_another_size_is_refused_with_both(tensor: ExtensibleTensor, granules: int) -> None:
    driver = tensor.driver
    fd = driver.export_handle(tensor.allocations[0], "posix_fd")
    assert isinstance(fd, int)
    with pytest.raises(ConfigError, match=f"nbytes={granules * driver.granule}: the descriptor holds 4194304 bytes"):
        driver.import_handle(fd, "posix_fd", granules * driver.granule)
    os.close(fd)


def test_a_descriptor_that_is_not_open_is_refused(driver: HostDriver) -> None:
    with pytest.raises(DriverError) as caught:
        driver.import_handle(999_999, "posix_fd", driver.granule)
    assert (caught.value.name, caught.value.driver) == ("EBADF", "host")
    assert accounts(driver) == Accounts()


def test_what_the_host_cannot_share_is_said(driver: HostDriver, tensor: ExtensibleTensor) -> None:
    with pytest.raises(DriverUnavailable, match="without handle type 'fabric'") as caught:
        driver.export_handle(tensor.allocations[0], "fabric")
    assert "posix_fd" in caught.value.cure
    with pytest.raises(DriverUnavailable, match="fabric"):
        driver.import_handle(b"\0" * 64, "fabric", driver.granule)
    with pytest.raises(DriverUnavailable, match="no dma-buf") as caught:
        driver.export_dmabuf(tensor.base_address, driver.granule)
    assert caught.value.cure
