"""The bytes themselves."""

from __future__ import annotations

import pytest

from vmmcache.errors import ConfigError
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench

_ODD = [(0, 1), (1, 255), (4093, 4099), (12345, 65537)]
"""Offsets and lengths that no alignment helps."""


class Contents(Suite):
    """`zero`, `copy`, `read`, `write` and `synchronise`."""

    @pytest.mark.parametrize(("offset", "nbytes"), _ODD)
    def test_what_was_written_is_read(self, bench: Workbench, offset: int, nbytes: int) -> None:
        """At any address, of any length."""
        mapping = bench.memory()
        data = _pattern(nbytes)
        bench.driver.write(mapping.address + offset, data)
        assert bench.driver.read(mapping.address + offset, nbytes) == data
        assert self.peek(bench.driver, mapping.address + offset, nbytes) == data

    def test_data_may_be_changed_after_it_was_written(self, bench: Workbench) -> None:
        """And a bytearray is as good as bytes; what was read is the caller's as well."""
        mapping = bench.memory()
        data = bytearray(b"before")
        bench.driver.write(mapping.address, data)
        data[:] = b"after!"
        read = bench.driver.read(mapping.address, 6)
        assert read == b"before"
        read[:] = b"after!"
        bench.driver.synchronise()
        assert self.peek(bench.driver, mapping.address, 6) == b"before"

    @pytest.mark.parametrize(("offset", "nbytes"), _ODD)
    def test_zero_sets_exactly_its_bytes(self, bench: Workbench, offset: int, nbytes: int) -> None:
        """I7: beside new bytes lie bytes that are kept."""
        mapping = bench.memory()
        self.poke(bench.driver, mapping.address, b"\xff" * (offset + nbytes + 1))
        bench.driver.zero(mapping.address + offset, nbytes)
        bench.driver.synchronise()
        found = self.peek(bench.driver, mapping.address, offset + nbytes + 1)
        assert found == b"\xff" * offset + bytes(nbytes) + b"\xff"

    @pytest.mark.parametrize(("offset", "nbytes"), _ODD)
    def test_copy_copies_exactly_its_bytes(self, bench: Workbench, offset: int, nbytes: int) -> None:
        """T6: between allocations, and the source stays."""
        source, target = bench.memory(), bench.memory()
        data = _pattern(nbytes)
        self.poke(bench.driver, source.address + 3, data)
        self.poke(bench.driver, target.address, b"\xff" * (offset + nbytes + 1))
        bench.driver.copy(target.address + offset, source.address + 3, nbytes)
        bench.driver.synchronise()
        found = self.peek(bench.driver, target.address, offset + nbytes + 1)
        assert found == b"\xff" * offset + data + b"\xff"
        assert self.peek(bench.driver, source.address + 3, nbytes) == data

    def test_verbs_are_done_in_the_order_in_which_they_are_called(self, bench: Workbench) -> None:
        """A zero, a copy of it and a write over it need no synchronise in between."""
        first, second = bench.memory(), bench.memory()
        driver = bench.driver
        for turn in range(10):
            driver.write(first.address, b"%016d" % turn)
            driver.copy(second.address, first.address, 16)
            driver.zero(first.address, 8)
            driver.copy(second.address + 16, first.address, 16)
            assert driver.read(second.address, 32) == b"%016d" % turn + bytes(8) + b"%08d" % turn

    def test_nothing_at_all_can_be_zeroed_copied_and_read(self, bench: Workbench) -> None:
        """No bytes are no special case."""
        mapping = bench.memory()
        self.poke(bench.driver, mapping.address, b"stays")
        bench.driver.zero(mapping.address, 0)
        bench.driver.copy(mapping.address, mapping.address + 100, 0)
        bench.driver.write(mapping.address, b"")
        assert bench.driver.read(mapping.address, 0) == b""
        bench.driver.synchronise()
        assert self.peek(bench.driver, mapping.address, 5) == b"stays"

    @pytest.mark.parametrize("nbytes", [-1, 1.0, None], ids=repr)
    def test_what_is_no_number_of_bytes_is_refused(self, bench: Workbench, nbytes: object) -> None:
        """A negative number reaches a vendor's library as nearly 2^64."""
        mapping = bench.memory()
        for verb, *arguments in (("zero",), ("copy", mapping.address + 8), ("read",)):
            with pytest.raises(ConfigError):
                getattr(bench.driver, verb)(mapping.address, *arguments, nbytes)

    def test_the_device_can_be_waited_for_at_any_time(self, bench: Workbench) -> None:
        """Also with nothing to wait for."""
        bench.driver.synchronise()
        bench.memory()
        bench.driver.synchronise()
        bench.driver.synchronise()


def _pattern(nbytes: int) -> bytes:
    # 251 is prime: no two places within a power of two look the same.
    return (bytes(range(1, 252)) * (nbytes // 251 + 1))[:nbytes]
