"""The driver's memory verbs as a region calls them: each that succeeds is counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from vmmcache.driver import Allocation, HandleType, Mapping, Reservation, VmmDriver
from vmmcache.metrics import Meter

__all__ = ["Verbs"]


class Verbs:
    """A driver for one region. What is counted enters the books when the region's operation ends."""

    __slots__ = ("_driver", "_meter")

    def __init__(self, driver: VmmDriver, meter: Meter) -> None:
        self._driver: Final = driver
        self._meter: Final = meter

    @property
    def fresh_is_zero(self) -> bool:
        """Whether new memory reads as zero."""
        return self._driver.fresh_is_zero

    def reserve(self, nbytes: int, *, at: int | None = None) -> Reservation:
        """As `VmmDriver.reserve`, and so are the others."""
        reservation = self._driver.reserve(nbytes, at=at)
        self._meter.did("reserve")
        self._meter.reserved += reservation.nbytes
        return reservation

    def free(self, reservation: Reservation) -> None:
        """Addresses back."""
        self._driver.free(reservation)
        self._meter.did("free")
        self._meter.reserved -= reservation.nbytes

    def create(self, nbytes: int) -> Allocation:
        """Memory without an address."""
        allocation = self._driver.create(nbytes)
        meter = self._meter
        meter.did("create")
        meter.physical += nbytes
        return allocation

    def import_handle(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        """Memory of another process."""
        allocation = self._driver.import_handle(shared, kind, nbytes)
        meter = self._meter
        meter.did("import_handle")
        meter.physical += nbytes
        return allocation

    def release(self, allocation: Allocation) -> None:
        """Memory back."""
        self._driver.release(allocation)
        meter = self._meter
        meter.did("release")
        meter.physical -= allocation.nbytes

    def map(self, reservation: Reservation, offset: int, allocation: Allocation) -> Mapping:
        """Memory at its address."""
        mapping = self._driver.map(reservation, offset, allocation)
        self._meter.did("map")
        return mapping

    def grant(self, run: Sequence[Mapping], *, writable: bool = True) -> None:
        """Access to a run of mappings."""
        self._driver.grant(run, writable=writable)
        self._meter.did("grant")

    def unmap(self, mapping: Mapping) -> None:
        """Memory away from its address."""
        self._driver.unmap(mapping)
        self._meter.did("unmap")

    def zero(self, address: int, nbytes: int) -> None:
        """Bytes to zero."""
        self._driver.zero(address, nbytes)
        self._meter.did("zero")

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Bytes within the device."""
        self._driver.copy(target, source, nbytes)
        self._meter.did("copy")

    def read(self, address: int, nbytes: int) -> bytearray:
        """Bytes to the host."""
        data = self._driver.read(address, nbytes)
        self._meter.did("read")
        return data

    def write(self, address: int, data: bytes | bytearray) -> None:
        """Bytes from the host."""
        self._driver.write(address, data)
        self._meter.did("write")

    def synchronise(self) -> None:
        """Wait for the device, and note how long that took."""
        begun = time.monotonic_ns()
        self._driver.synchronise()
        self._meter.waited(time.monotonic_ns() - begun)

    def export_handle(self, allocation: Allocation, kind: HandleType) -> int | bytes:
        """A handle for another process."""
        handle = self._driver.export_handle(allocation, kind)
        self._meter.did("export_handle")
        return handle

    def export_dmabuf(self, address: int, nbytes: int) -> int:
        """A dma-buf descriptor."""
        descriptor = self._driver.export_dmabuf(address, nbytes)
        self._meter.did("export_dmabuf")
        return descriptor
