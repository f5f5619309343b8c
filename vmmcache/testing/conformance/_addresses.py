"""Addresses without memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from vmmcache.errors import AlignmentError, ConfigError, DriverError
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench
from vmmcache.units import Address, Bytes, align_up


class Addresses(Suite):
    """`reserve` and `free`."""

    def test_a_reservation_starts_on_a_granule_and_is_as_long_as_asked(self, bench: Workbench) -> None:
        """D3."""
        reservation = bench.reserve(3)
        assert reservation.address > 0
        assert reservation.address % bench.granule == 0
        assert reservation.nbytes == 3 * bench.granule

    def test_reservations_share_no_address(self, bench: Workbench) -> None:
        """Addresses set aside are nobody else's."""
        ends = sorted(
            (kept.address, kept.address + kept.nbytes) for kept in [bench.reserve(n) for n in (1, 3, 2, 1, 5)]
        )
        for (_, end), (start, _) in itertools.pairwise(ends):
            assert end <= start

    def test_addresses_may_exceed_the_memory(self, bench: Workbench) -> None:
        """T1: addresses cost nothing."""
        nbytes = align_up(max(self.large_reservation, 2 * bench.driver.memory_info().total), bench.granule)
        before = self.free_bytes(bench)
        bench.reserve(nbytes // bench.granule)
        assert self.free_bytes(bench) == before

    def test_addresses_that_were_freed_can_be_had_again(self, bench: Workbench) -> None:
        """D10: where memory is kept until addresses are freed. Elsewhere it may be refused."""
        kept = bench.reserve(2)
        bench.free(kept)
        try:
            again = bench.reserve(2, at=kept.address)
        except DriverError:
            assert not bench.driver.keeps_memory
        else:
            assert again == kept or not bench.driver.keeps_memory
            assert again.address % bench.granule == 0

    def test_addresses_that_are_taken_cannot_be_had_again(self, bench: Workbench) -> None:
        """Refused, or others are given; and whoever has them keeps what is there."""
        mapping = bench.memory(2)
        self.poke(bench.driver, mapping.address, b"stays")
        held = bench.driver.held
        try:
            other = bench.reserve(2, at=mapping.address)
        except DriverError:
            assert bench.driver.held == held
        else:
            assert other.address + other.nbytes <= mapping.address or mapping.address + mapping.nbytes <= other.address
        assert self.peek(bench.driver, mapping.address, 5) == b"stays"

    @pytest.mark.parametrize("wrong", [1, -1], ids=["longer", "shorter"])
    def test_a_reservation_is_freed_with_exactly_its_own_size(self, bench: Workbench, wrong: int) -> None:
        """I2."""
        kept = bench.reserve(2)
        with pytest.raises(DriverError):
            bench.driver.free(replace(kept, nbytes=Bytes(kept.nbytes + wrong * bench.granule)))
        bench.place(kept, 1, bench.create(1))  # nothing was freed

    def test_a_reservation_is_freed_at_exactly_its_own_address(self, bench: Workbench) -> None:
        """I2."""
        kept = bench.reserve(2)
        inner = replace(kept, address=Address(kept.address + bench.granule), nbytes=Bytes(bench.granule))
        with pytest.raises(DriverError):
            bench.driver.free(inner)
        bench.place(kept, 1, bench.create(1))  # nothing was freed

    def test_a_reservation_is_freed_once(self, bench: Workbench) -> None:
        """I2."""
        kept = bench.reserve(1)
        bench.free(kept)
        with pytest.raises(DriverError):
            bench.driver.free(kept)

    def test_a_reservation_with_memory_in_it_is_not_freed(self, bench: Workbench) -> None:
        """I2, and the memory stays where it is."""
        mapping = bench.place(bench.reserve(3), 1, bench.create(1))
        self.poke(bench.driver, mapping.address, b"stays")
        with pytest.raises(DriverError):
            bench.driver.free(mapping.reservation)
        assert self.peek(bench.driver, mapping.address, 5) == b"stays"

    @pytest.mark.parametrize("verb", ["reserve", "create"])
    def test_a_size_off_the_granule_is_refused(self, bench: Workbench, verb: str) -> None:
        """D3: rounded up by nobody in silence."""
        for nbytes in (1, bench.granule - 1, bench.granule + 1):
            with pytest.raises(AlignmentError, match=str(nbytes)):
                getattr(bench.driver, verb)(nbytes)

    @pytest.mark.parametrize("verb", ["reserve", "create"])
    @pytest.mark.parametrize("nbytes", [0, -(1 << 30), float(1 << 30), float("nan"), True, None, "1GiB"], ids=repr)
    def test_what_is_no_size_is_refused(self, bench: Workbench, verb: str, nbytes: object) -> None:
        """Named as the caller's mistake, before the vendor is asked."""
        with pytest.raises(ConfigError) as caught:
            getattr(bench.driver, verb)(nbytes)
        assert caught.value.field == "nbytes"
