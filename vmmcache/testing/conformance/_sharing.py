"""Handing memory to another process, or to a NIC."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

import pytest

from vmmcache.driver import Allocation, HandleType
from vmmcache.errors import DriverError, DriverUnavailable, VmmCacheError
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench

_KINDS: tuple[HandleType, ...] = ("posix_fd", "fabric")


class Sharing(Suite):
    """`export_handle`, `import_handle` and `export_dmabuf`: each kind works altogether, or says why not."""

    @pytest.mark.parametrize("kind", _KINDS)
    def test_what_was_imported_shows_the_same_bytes(self, bench: Workbench, kind: HandleType) -> None:
        """C7, in both directions."""
        mapping = bench.memory(2)
        if (imported := self._imported(bench, mapping.allocation, kind)) is None:
            return
        assert imported.nbytes == mapping.nbytes
        assert imported.id != mapping.allocation.id
        other = bench.place(bench.reserve(2), 0, imported)
        self.poke(bench.driver, mapping.address + bench.granule, b"ours")
        self.poke(bench.driver, other.address, b"theirs")
        assert self.peek(bench.driver, other.address + bench.granule, 4) == b"ours"
        assert self.peek(bench.driver, mapping.address, 6) == b"theirs"

    @pytest.mark.parametrize("kind", _KINDS)
    def test_what_was_imported_outlives_the_exporters_handle(self, bench: Workbench, kind: HandleType) -> None:
        """C7: memory lives as long as anyone holds it."""
        mapping = bench.memory()
        self.poke(bench.driver, mapping.address, b"lives")
        if (imported := self._imported(bench, mapping.allocation, kind)) is None:
            return
        bench.give_back(mapping)
        other = bench.place(bench.reserve(1), 0, imported)
        assert self.peek(bench.driver, other.address, 5) == b"lives"

    @pytest.mark.parametrize("kind", _KINDS)
    def test_a_handle_of_a_kind_that_there_is_not_says_why(self, bench: Workbench, kind: HandleType) -> None:
        """D9: what the device cannot do is known from the allocation, and asking says what helps."""
        allocation = bench.create(1)
        if kind not in allocation.handle_types:
            with pytest.raises(DriverUnavailable, match=kind) as caught:
                bench.driver.export_handle(allocation, kind)
            assert caught.value.reason
            assert caught.value.cure
            assert caught.value.driver == bench.driver.name

    def test_an_exported_descriptor_is_the_callers(self, bench: Workbench) -> None:
        """C7: it stays open until the caller closes it, and closing it takes nothing from the allocation."""
        mapping = bench.memory()
        if "posix_fd" not in mapping.allocation.handle_types:
            return
        first, second = (cast("int", bench.driver.export_handle(mapping.allocation, "posix_fd")) for _ in range(2))
        assert first != second
        os.close(first)
        bench.adopt(bench.driver.import_handle(second, "posix_fd", mapping.nbytes))
        os.fstat(second)  # importing has not closed it
        os.close(second)
        self.poke(bench.driver, mapping.address, b"mine")
        assert self.peek(bench.driver, mapping.address, 4) == b"mine"

    def test_an_import_of_another_size_is_refused(self, bench: Workbench) -> None:
        """At the latest where it is mapped: a descriptor does not tell every platform how much is behind it."""
        allocation = bench.create(2)
        if "posix_fd" not in allocation.handle_types:
            return
        descriptor = cast("int", bench.driver.export_handle(allocation, "posix_fd"))
        try:
            with pytest.raises(VmmCacheError):
                bench.memory_of(bench.driver.import_handle(descriptor, "posix_fd", 4 * bench.granule))
        finally:
            os.close(descriptor)

    def test_memory_for_reading_only_is_not_written(self, bench: Workbench) -> None:
        """C7: refused before the vendor's library, or the machine, has to; or the driver says that it cannot."""
        mapping = bench.memory()
        self.poke(bench.driver, mapping.address, b"fixed")
        if (imported := self._imported(bench, mapping.allocation, "posix_fd")) is None:
            return
        driver, reservation = bench.driver, bench.reserve(1)
        other = bench.map(reservation, 0, imported)
        try:
            driver.grant([other], writable=False)
        except DriverUnavailable as error:
            assert error.cure
            return
        assert driver.read(other.address, 5) == b"fixed"
        writes: list[Callable[[], None]] = [
            lambda: driver.write(other.address, b"other"),
            lambda: driver.zero(other.address, 5),
            lambda: driver.copy(other.address, mapping.address, 5),
        ]
        for write in writes:
            with pytest.raises(DriverError):
                write()
        driver.copy(mapping.address + 8, other.address, 5)
        driver.synchronise()
        assert self.peek(driver, mapping.address + 8, 5) == b"fixed"

    def test_a_dma_buf_is_a_descriptor_or_says_why_there_is_none(self, bench: Workbench) -> None:
        """D9, C7."""
        mapping = bench.memory()
        try:
            descriptor = bench.driver.export_dmabuf(mapping.address, mapping.nbytes)
        except DriverUnavailable as error:
            assert error.reason
            assert error.cure
            assert error.call
        else:
            os.fstat(descriptor)
            os.close(descriptor)

    def _imported(self, bench: Workbench, allocation: Allocation, kind: HandleType) -> Allocation | None:
        """The same memory once more, or None where it has no handle of that kind (for which there is a test)."""
        if kind not in allocation.handle_types:
            return None
        shared = bench.driver.export_handle(allocation, kind)
        imported = bench.adopt(bench.driver.import_handle(shared, kind, allocation.nbytes))
        if isinstance(shared, int):
            os.close(shared)
        return imported
