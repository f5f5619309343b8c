"""What a test of the suite takes from a driver, so that all of it goes back however the test ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vmmcache.driver import Allocation, Mapping, Reservation, VmmDriver

__all__ = ["Workbench"]


class Workbench:
    """A driver's verbs, in granules, with a memory of what has to go back.

    For what should *work*. What should be refused is asked of `driver` itself.
    """

    def __init__(self, driver: VmmDriver) -> None:
        self.driver: Final = driver
        self.granule: Final = driver.granule
        self._mappings: list[Mapping] = []
        self._allocations: list[Allocation] = []
        self._reservations: list[Reservation] = []

    def reserve(self, granules: int, *, at: int | None = None) -> Reservation:
        """Addresses."""
        reservation = self.driver.reserve(granules * self.granule, at=at)
        self._reservations.append(reservation)
        return reservation

    def create(self, granules: int) -> Allocation:
        """Memory."""
        return self.adopt(self.driver.create(granules * self.granule))

    def adopt(self, allocation: Allocation) -> Allocation:
        """Memory that came in another way."""
        self._allocations.append(allocation)
        return allocation

    def map(self, reservation: Reservation, granule: int, allocation: Allocation) -> Mapping:
        """Memory at addresses, not to be touched yet."""
        mapping = self.driver.map(reservation, granule * self.granule, allocation)
        self._mappings.append(mapping)
        return mapping

    def place(self, reservation: Reservation, granule: int, allocation: Allocation) -> Mapping:
        """Memory at addresses, to be touched."""
        mapping = self.map(reservation, granule, allocation)
        self.driver.grant([mapping])
        return mapping

    def memory(self, granules: int = 1) -> Mapping:
        """New memory at new addresses, to be touched."""
        return self.memory_of(self.create(granules))

    def memory_of(self, allocation: Allocation) -> Mapping:
        """An allocation, however it came in, at new addresses, to be touched."""
        if allocation not in self._allocations:
            self.adopt(allocation)
        return self.place(self.reserve(allocation.nbytes // self.granule), 0, allocation)

    def run(self, *granules: int) -> Sequence[Mapping]:
        """New allocations of so many granules each, beside one another at new addresses, not to be touched yet."""
        reservation = self.reserve(sum(granules))
        starts = [sum(granules[:place]) for place in range(len(granules))]
        return [self.map(reservation, start, self.create(count)) for start, count in zip(starts, granules, strict=True)]

    def unmap(self, mapping: Mapping) -> None:
        """Take a mapping away, when the device is idle."""
        self.driver.synchronise()
        self.driver.unmap(mapping)
        self._mappings.remove(mapping)

    def release(self, allocation: Allocation) -> None:
        """Give memory back."""
        self.driver.release(allocation)
        self._allocations.remove(allocation)

    def free(self, reservation: Reservation) -> None:
        """Give addresses back."""
        self.driver.free(reservation)
        self._reservations.remove(reservation)

    def give_back(self, mapping: Mapping) -> None:
        """Give everything behind one mapping back."""
        self.unmap(mapping)
        self.release(mapping.allocation)
        self.free(mapping.reservation)

    def clear(self) -> None:
        """Give all of it back."""
        for mapping in reversed(self._mappings):
            self.unmap(mapping)
        for allocation in reversed(self._allocations):
            self.release(allocation)
        for reservation in reversed(self._reservations):
            self.free(reservation)
