"""Mappings beside one another, and the access to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from vmmcache.errors import ConfigError, DriverError
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench
from vmmcache.units import Bytes


class Runs(Suite):
    """`grant`, and growth piece by piece."""

    def test_a_run_of_mappings_is_granted_in_one_call(self, bench: Workbench) -> None:
        """T4: every byte of it, from the first to the last."""
        run = bench.run(1, 2, 1)
        bench.driver.grant(run)
        for mapping in run:
            for address in (mapping.address, mapping.address + mapping.nbytes - 1):
                self.poke(bench.driver, address, b"\x5a")
                assert self.peek(bench.driver, address, 1) == b"\x5a"

    def test_a_run_is_one_range(self, bench: Workbench) -> None:
        """T1: kernels and copies cross the borders of allocations."""
        first, second = bench.run(1, 1)
        bench.driver.grant([first, second])
        bench.driver.write(second.address - 3, b"across")
        assert self.peek(bench.driver, second.address - 3, 3) == b"acr"
        assert self.peek(bench.driver, second.address, 3) == b"oss"
        assert bench.driver.read(second.address - 3, 6) == b"across"
        bench.driver.zero(second.address - 2, 4)
        bench.driver.synchronise()
        assert self.peek(bench.driver, second.address - 3, 6) == b"a\x00\x00\x00\x00s"

    def test_memory_beside_memory_of_other_sizes_disturbs_nothing(self, bench: Workbench) -> None:
        """D4: some runtimes refuse access beside memory of another size; on those, all allocations have one size."""
        if bench.driver.uniform_chunks:
            pytest.skip("all allocations of a reservation have one size on this device (uniform_chunks)")
        reservation = bench.reserve(9)
        placed = []
        for start, granules in ((0, 1), (1, 3), (6, 2), (4, 2), (8, 1)):
            mapping = bench.place(reservation, start, bench.create(granules))
            placed.append((mapping, b"at %d" % start))
            self.poke(bench.driver, mapping.address, placed[-1][1])
            self.poke(bench.driver, mapping.address + mapping.nbytes - 4, placed[-1][1])
            for other, mark in placed:
                assert self.peek(bench.driver, other.address, 4) == mark
                assert self.peek(bench.driver, other.address + other.nbytes - 4, 4) == mark

    def test_memory_taken_from_between_disturbs_nothing(self, bench: Workbench) -> None:
        """A shrink takes from the end, sleep and defragmenting from anywhere."""
        left, middle, right = bench.run(1, 2, 1)
        bench.driver.grant([left, middle, right])
        self.poke(bench.driver, middle.address - 4, b"left")
        self.poke(bench.driver, right.address, b"right")
        bench.unmap(middle)
        bench.release(middle.allocation)
        assert self.peek(bench.driver, middle.address - 4, 4) == b"left"
        assert self.peek(bench.driver, right.address, 5) == b"right"

    def test_a_run_with_a_gap_is_not_granted(self, bench: Workbench) -> None:
        """D5: refused as the caller's mistake, also out of order, also empty."""
        reservation = bench.reserve(4)
        first, second, third = (bench.map(reservation, start, bench.create(1)) for start in (0, 1, 3))
        for run in ([first, third], [second, first], [first, first], []):
            with pytest.raises(ConfigError):
                bench.driver.grant(run)

    def test_a_grant_covers_whole_mappings_that_exist(self, bench: Workbench) -> None:
        """D5: not a part of one, not a hole beside one."""
        mapping = bench.map(bench.reserve(4), 0, bench.create(2))
        for granules in (1, 3):
            part = replace(mapping, allocation=replace(mapping.allocation, nbytes=Bytes(granules * bench.granule)))
            with pytest.raises(DriverError):
                bench.driver.grant([part])
        tail = replace(
            mapping, offset=Bytes(bench.granule), allocation=replace(mapping.allocation, nbytes=Bytes(bench.granule))
        )
        with pytest.raises(DriverError):
            bench.driver.grant([tail])

    @pytest.mark.parametrize("verb", ["read", "write", "zero", "copy to", "copy from"])
    def test_what_is_mapped_and_not_granted_is_not_touched(self, bench: Workbench, verb: str) -> None:
        """I5 would mean nothing if access came by itself; and what is beside it has access or has not by itself."""
        barred, granted = bench.run(1, 1)
        bench.driver.grant([granted])
        self._refused(bench, verb, barred.address, granted.address)
        self._refused(bench, verb, granted.address - 1, granted.address + 16)  # into the granted one from before
        bench.driver.grant([barred])
        self.poke(bench.driver, barred.address, b"now")
        assert self.peek(bench.driver, barred.address, 3) == b"now"

    @pytest.mark.parametrize("verb", ["read", "write", "zero", "copy to", "copy from"])
    def test_what_is_not_mapped_is_not_touched(self, bench: Workbench, verb: str) -> None:
        """Addresses alone, addresses whose memory went away, and a range that runs into them."""
        mapping = bench.place(bench.reserve(2), 0, bench.create(1))
        other = bench.memory()
        self._refused(bench, verb, mapping.address + mapping.nbytes, other.address)
        self._refused(bench, verb, mapping.address + mapping.nbytes - 1, other.address)
        bench.unmap(mapping)
        self._refused(bench, verb, mapping.address, other.address)

    def _refused(self, bench: Workbench, verb: str, forbidden: int, allowed: int) -> None:
        driver = bench.driver
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: driver.read(forbidden, 8),
            "write": lambda: driver.write(forbidden, b"12345678"),
            "zero": lambda: driver.zero(forbidden, 8),
            "copy to": lambda: driver.copy(forbidden, allowed, 8),
            "copy from": lambda: driver.copy(allowed, forbidden, 8),
        }
        before = self.peek(driver, allowed, 8)
        with pytest.raises(DriverError):
            calls[verb]()
        driver.synchronise()
        assert self.peek(driver, allowed, 8) == before
