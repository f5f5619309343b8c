"""Memory at addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vmmcache.driver import Mapping
from vmmcache.errors import AlignmentError, ConfigError, DriverError
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench
from vmmcache.units import Bytes


class Mappings(Suite):
    """`map` and `unmap`."""

    def test_memory_is_where_it_was_mapped(self, bench: Workbench) -> None:
        """From the first byte to the last, and the same from both sides."""
        mapping = bench.place(bench.reserve(4), 1, bench.create(2))
        assert mapping.address == mapping.reservation.address + bench.granule
        last = mapping.address + mapping.nbytes - 1
        self.poke(bench.driver, mapping.address, b"\x11")
        bench.driver.write(last, b"\x22")
        assert bench.driver.read(mapping.address, 1) == b"\x11"
        assert self.peek(bench.driver, last, 1) == b"\x22"

    def test_memory_keeps_its_bytes_when_it_moves(self, bench: Workbench) -> None:
        """T6 fills an allocation at one address and uses it at another."""
        mapping = bench.memory()
        self.poke(bench.driver, mapping.address, b"moved")
        bench.unmap(mapping)
        elsewhere = bench.place(bench.reserve(2), 1, mapping.allocation)
        assert self.peek(bench.driver, elsewhere.address, 5) == b"moved"

    def test_an_address_shows_what_was_mapped_there_last(self, bench: Workbench) -> None:
        """I1: memory is exchanged and the address stays."""
        mapping = bench.memory()
        self.poke(bench.driver, mapping.address, b"before")
        bench.unmap(mapping)
        other = bench.memory()
        self.poke(bench.driver, other.address, b"after!")
        bench.unmap(other)
        again = bench.place(mapping.reservation, 0, other.allocation)
        assert again.address == mapping.address
        assert self.peek(bench.driver, again.address, 6) == b"after!"

    def test_two_mappings_of_one_allocation_show_the_same_bytes(self, bench: Workbench) -> None:
        """Where the platform allows it (`aliases`); where not, the second is refused and the first unharmed."""
        mapping = bench.memory()
        reservation = bench.reserve(1)
        if self.aliases:
            alias = bench.place(reservation, 0, mapping.allocation)
            self.poke(bench.driver, alias.address + 7, b"both")
        else:
            with pytest.raises(DriverError):
                bench.driver.map(reservation, 0, mapping.allocation)
            self.poke(bench.driver, mapping.address + 7, b"both")
        assert self.peek(bench.driver, mapping.address + 7, 4) == b"both"

    @pytest.mark.parametrize(("granule", "granules"), [(1, 2), (0, 2), (2, 2), (0, 4), (1, 1), (2, 1)])
    def test_nothing_is_mapped_over_a_mapping(self, bench: Workbench, granule: int, granules: int) -> None:
        """Not at the same place, not across either end, not inside; and the first keeps its bytes."""
        mapping = bench.place(bench.reserve(5), 1, bench.create(2))
        self.poke(bench.driver, mapping.address, b"first")
        with pytest.raises(DriverError):
            bench.driver.map(mapping.reservation, granule * bench.granule, bench.create(granules))
        assert self.peek(bench.driver, mapping.address, 5) == b"first"

    def test_nothing_is_mapped_past_the_reservation(self, bench: Workbench) -> None:
        """Not across its end, and not before its start."""
        reservation, allocation = bench.reserve(2), bench.create(2)
        for offset in (bench.granule, 2 * bench.granule, -bench.granule):
            with pytest.raises(ConfigError):
                bench.driver.map(reservation, offset, allocation)

    def test_nothing_is_mapped_off_the_granule(self, bench: Workbench) -> None:
        """D3."""
        reservation, allocation = bench.reserve(2), bench.create(1)
        for offset in (1, bench.granule - 1, bench.granule // 2):
            with pytest.raises(AlignmentError):
                bench.driver.map(reservation, offset, allocation)

    def test_nothing_is_mapped_where_nothing_is_reserved(self, bench: Workbench) -> None:
        """Addresses that went back may be anybody's."""
        gone = bench.reserve(1)
        allocation = bench.create(1)
        bench.free(gone)
        with pytest.raises(DriverError):
            bench.driver.map(gone, 0, allocation)

    @pytest.mark.parametrize(("start", "granules"), [(0, 1), (1, 1), (0, 3), (1, 2), (-1, 3)])
    def test_only_exactly_a_mapping_is_unmapped(self, bench: Workbench, start: int, granules: int) -> None:
        """Not a part of it, and not more than it; and it keeps its bytes."""
        mapping = bench.place(bench.reserve(4), 1, bench.create(2))
        self.poke(bench.driver, mapping.address, b"stays")
        with pytest.raises(DriverError):
            bench.driver.unmap(_other(mapping, start * bench.granule, granules * bench.granule))
        assert self.peek(bench.driver, mapping.address, 5) == b"stays"

    def test_two_mappings_are_not_unmapped_as_one(self, bench: Workbench) -> None:
        """Each allocation is mapped by itself and unmapped by itself."""
        first, second = bench.run(1, 1)
        bench.driver.grant([first, second])
        self.poke(bench.driver, second.address, b"stays")
        with pytest.raises(DriverError):
            bench.driver.unmap(_other(first, 0, 2 * bench.granule))
        assert self.peek(bench.driver, second.address, 5) == b"stays"

    def test_a_mapping_is_unmapped_once(self, bench: Workbench) -> None:
        """The second could hit what somebody else has mapped there since."""
        mapping = bench.memory()
        bench.unmap(mapping)
        with pytest.raises(DriverError):
            bench.driver.unmap(mapping)

    def test_many_rounds_of_mapping_and_unmapping_leave_nothing(self, bench: Workbench) -> None:
        """I3."""
        before = self.free_bytes(bench)
        reservation = bench.reserve(8)
        for round_ in range(50):
            mapping = bench.place(reservation, round_ % 7, bench.create(1 + round_ % 2))
            bench.unmap(mapping)
            bench.release(mapping.allocation)
        assert self.free_bytes(bench) == before
        bench.free(reservation)


def _other(mapping: Mapping, shift: int, nbytes: int) -> Mapping:
    """A mapping that was never made, `shift` bytes from one that was."""
    allocation = replace(mapping.allocation, nbytes=Bytes(nbytes))
    return replace(mapping, offset=Bytes(mapping.offset + shift), allocation=allocation)
