"""What passes between a driver and its callers: three handles, and facts about the device.

A `Reservation` is addresses without memory, an `Allocation` is memory without an address, a `Mapping` joins one of
each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vmmcache.units import Address, Bytes

__all__ = ["Allocation", "Granularity", "HandleType", "Held", "Mapping", "MemoryInfo", "Reservation"]

HandleType = Literal["posix_fd", "fabric"]
"""Kinds of handle by which another process can import an allocation."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Addresses [address, address + nbytes) that nobody else gets, with no memory behind them."""

    address: Address
    nbytes: Bytes


@dataclass(frozen=True, slots=True)
class Allocation:
    """One physical handle."""

    handle: int
    """The vendor's handle. May be used again by the vendor after release; `id` may not."""
    nbytes: Bytes
    id: int
    """Unique in this process, never used again."""
    rdma_capable: bool | None = None
    """Whether a NIC may reach the memory, as read back from the driver; None where it cannot say."""
    handle_types: frozenset[HandleType] = frozenset()
    """Kinds of shareable handle that the allocation was really created with."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A whole allocation at `reservation.address + offset`."""

    reservation: Reservation
    offset: Bytes
    allocation: Allocation

    @property
    def address(self) -> Address:
        """Address of the first byte."""
        return Address(self.reservation.address + self.offset)

    @property
    def nbytes(self) -> Bytes:
        """Bytes of the whole allocation."""
        return self.allocation.nbytes


@dataclass(frozen=True, slots=True)
class Granularity:
    """What the driver says of its mapping unit, in bytes, for the very properties that it creates memory with."""

    minimum: int
    recommended: int


@dataclass(frozen=True, slots=True)
class Held:
    """How many of each a driver has given out and not got back."""

    reservations: int
    mappings: int
    allocations: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of the device, in bytes."""

    free: int
    total: int
    source: str
    """Where the numbers come from: ``"driver"``, ``"cgroup"``, ``"MemAvailable"``, ``"configured"``, ..."""
