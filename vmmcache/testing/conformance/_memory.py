"""Memory without an address."""

from __future__ import annotations

import os
import resource

import pytest

from vmmcache.errors import DriverError, OutOfDeviceMemory
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench
from vmmcache.units import align_up


class Memory(Suite):
    """`create`, `release` and `memory_info`."""

    def test_an_allocation_says_how_large_it_is(self, bench: Workbench) -> None:
        """One handle, however many granules."""
        for granules in (1, 4, 2):
            assert bench.create(granules).nbytes == granules * bench.granule

    def test_an_id_is_never_used_again(self, bench: Workbench) -> None:
        """C4: also where the vendor uses its handle again."""
        ids = set()
        for _ in range(20):
            allocation = bench.create(1)
            ids.add(allocation.id)
            bench.release(allocation)
        ids.add(bench.create(1).id)
        assert len(ids) == 21

    def test_free_memory_falls_with_create_and_rises_with_release(self, bench: Workbench) -> None:
        """S2 computes budgets from it."""
        before = self.free_bytes(bench)
        allocation = bench.create(4)
        during = self.free_bytes(bench)
        bench.release(allocation)
        after = self.free_bytes(bench)
        if before is not None and during is not None and after is not None:
            assert during <= before - allocation.nbytes
            assert after >= during + allocation.nbytes

    def test_what_is_out_is_counted(self, bench: Workbench) -> None:
        """I3: `held` is what leak checks go by."""
        before = bench.driver.held
        first, second = bench.run(1, 2)
        during = bench.driver.held
        assert during.reservations == before.reservations + 1
        assert during.mappings == before.mappings + 2
        assert during.allocations == before.allocations + 2
        for mapping in (first, second):
            bench.unmap(mapping)
            bench.release(mapping.allocation)
        bench.free(first.reservation)
        assert bench.driver.held == before

    def test_an_allocation_is_released_once(self, bench: Workbench) -> None:
        """I3: a second release could hit whoever has the handle by then."""
        allocation = bench.create(1)
        bench.release(allocation)
        with pytest.raises(DriverError):
            bench.driver.release(allocation)

    def test_what_was_released_is_not_mapped(self, bench: Workbench) -> None:
        """I3."""
        reservation, allocation = bench.reserve(1), bench.create(1)
        bench.release(allocation)
        with pytest.raises(DriverError):
            bench.driver.map(reservation, 0, allocation)

    def test_memory_released_while_mapped_stays_until_it_is_unmapped(self, bench: Workbench) -> None:
        """Bytes stay readable, and paid for; at the unmap the memory goes back."""
        before = self.free_bytes(bench)
        mapping = bench.memory(2)
        self.poke(bench.driver, mapping.address, b"still here")
        during = self.free_bytes(bench)
        bench.release(mapping.allocation)
        assert self.peek(bench.driver, mapping.address, 10) == b"still here"
        assert self.free_bytes(bench) == during
        bench.unmap(mapping)
        assert self.free_bytes(bench) == before

    def test_more_than_there_is_raises_out_of_device_memory(self, bench: Workbench) -> None:
        """D6, D12: with the numbers, as a MemoryError too, and nothing is taken."""
        before = self.free_bytes(bench)
        nbytes = align_up(bench.driver.memory_info().total + 1, bench.granule)
        with pytest.raises(OutOfDeviceMemory) as caught:
            bench.driver.create(nbytes)
        error = caught.value
        assert isinstance(error, MemoryError)
        assert error.requested == nbytes
        assert error.free is None or 0 <= error.free < nbytes
        assert error.driver == bench.driver.name
        assert error.call
        assert error.name
        assert self.free_bytes(bench) == before

    def test_after_out_of_device_memory_a_smaller_allocation_succeeds(self, bench: Workbench) -> None:
        """I4: the failure has left nothing behind."""
        for _ in range(3):
            with pytest.raises(OutOfDeviceMemory):
                bench.driver.create(align_up(bench.driver.memory_info().total + 1, bench.granule))
        mapping = bench.memory()
        self.poke(bench.driver, mapping.address, b"fits")
        assert self.peek(bench.driver, mapping.address, 4) == b"fits"

    def test_an_allocation_holds_as_many_descriptors_as_the_driver_says(self, bench: Workbench) -> None:
        """D14: the limit of open files is checked against it."""
        bench.give_back(bench.memory())  # what the vendor opens once and keeps is open now
        before = _descriptors()
        mappings = [bench.memory() for _ in range(5)]
        assert _descriptors() - before == 5 * bench.driver.fds_per_allocation
        for mapping in mappings:
            bench.give_back(mapping)
        assert _descriptors() == before

    def test_memory_that_is_promised_to_be_zero_is_zero(self, bench: Workbench) -> None:
        """I7: the region believes `fresh_is_zero`, so it has to hold for memory that was written to before, too."""
        for _ in range(3):
            mapping = bench.memory(2)
            if not bench.driver.fresh_is_zero:
                bench.driver.zero(mapping.address, mapping.nbytes)
                bench.driver.synchronise()
            assert self.peek(bench.driver, mapping.address, mapping.nbytes) == bytes(mapping.nbytes)
            self.poke(bench.driver, mapping.address, b"\xff" * mapping.nbytes)
            bench.give_back(mapping)


def _descriptors() -> int:
    """Those that count: what a library keeps above the limit is no burden to anybody."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sum(soft == resource.RLIM_INFINITY or int(name) < soft for name in os.listdir("/proc/self/fd"))
