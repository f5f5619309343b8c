"""Drivers with one mistake each, under the conformance suite. `test_testing.py` runs this file, as its author would.

They are the host driver with something changed. `caught_by` is the test that has to notice.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from typing import ClassVar, Final

import pytest

from vmmcache import Allocation, DriverError, MemoryInfo, VmmDriver
from vmmcache.driver import HandleType
from vmmcache.places import Wrong
from vmmcache.testing import DriverConformance
from vmmcache.units import Bytes
from vmmcache_host._driver import HostDriver


class Planted(DriverConformance):
    """Over a driver class that stands in the suite, so that mistake and judgement are read together."""

    caught_by: ClassVar[str]
    driver_class: ClassVar[type[VmmDriver]]

    @pytest.fixture(autouse=True)
    def _known_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "1GiB")

    @pytest.fixture
    def driver(self) -> VmmDriver:
        return self.driver_class()


class TestNothingPlanted(Planted):
    caught_by = ""
    driver_class = HostDriver


class TestZeroStopsShort(Planted):
    caught_by = "test_zero_sets_exactly_its_bytes"

    class driver_class(HostDriver):
        def _zero(self, address: int, nbytes: int) -> None:
            super()._zero(address, nbytes - 1)


class TestZeroGoesTooFar(Planted):
    caught_by = "test_zero_sets_exactly_its_bytes"

    class driver_class(HostDriver):
        def _zero(self, address: int, nbytes: int) -> None:
            super()._zero(address, -(-nbytes // 4096) * 4096)


class TestCopyForgetsTheTail(Planted):
    caught_by = "test_copy_copies_exactly_its_bytes"

    class driver_class(HostDriver):
        def _copy(self, target: int, source: int, nbytes: int) -> None:
            super()._copy(target, source, nbytes // 16 * 16)


class TestWriteIsLate(Planted):
    caught_by = "test_data_may_be_changed_after_it_was_written"

    class driver_class(HostDriver):
        late: Final[list[tuple[int, bytes | bytearray]]] = []

        def _write(self, address: int, data: bytes | bytearray) -> None:
            self.late.append((address, data))

        def _read(self, address: int, nbytes: int) -> bytearray:
            while self.late:
                super()._write(*self.late.pop(0))
            return super()._read(address, nbytes)


class TestZeroOvertakes(Planted):
    caught_by = "test_verbs_are_done_in_the_order_in_which_they_are_called"

    class driver_class(HostDriver):
        late: Final[list[tuple[int, int, int]]] = []

        def _copy(self, target: int, source: int, nbytes: int) -> None:
            self.late.append((target, source, nbytes))

        def _read(self, address: int, nbytes: int) -> bytearray:
            self._synchronise()
            return super()._read(address, nbytes)

        def _synchronise(self) -> None:
            while self.late:
                super()._copy(*self.late.pop(0))


class TestReleaseKeepsADescriptor(Planted):
    caught_by = "test_an_allocation_holds_as_many_descriptors_as_the_driver_says"

    class driver_class(HostDriver):
        def _release(self, handle: int) -> None:
            os.dup(self._files.descriptor(handle))
            super()._release(handle)


class TestSaysItNeedsNoDescriptors(Planted):
    caught_by = "test_an_allocation_holds_as_many_descriptors_as_the_driver_says"

    class driver_class(HostDriver):
        fds_per_allocation = 0


class TestFreshIsNotZero(Planted):
    caught_by = "test_memory_that_is_promised_to_be_zero_is_zero"

    class driver_class(HostDriver):
        def _create(self, nbytes: int) -> Allocation:
            allocation = super()._create(nbytes)
            os.pwrite(self._files.descriptor(allocation.handle), b"\xa5", nbytes // 2)
            return allocation


class TestUnmapForgetsTheContents(Planted):
    caught_by = "test_memory_keeps_its_bytes_when_it_moves"

    class driver_class(HostDriver):
        def _unmap(self, address: int, nbytes: int) -> None:
            super()._zero(address, 4096)
            super()._unmap(address, nbytes)


class TestImportsACopy(Planted):
    caught_by = "test_what_was_imported_shows_the_same_bytes"

    class driver_class(HostDriver):
        def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
            return self._create(nbytes)


class TestImportClosesWhatItWasGiven(Planted):
    caught_by = "test_an_exported_descriptor_is_the_callers"

    class driver_class(HostDriver):
        def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
            allocation = super()._import(shared, kind, nbytes)
            assert isinstance(shared, int)
            os.close(shared)
            return allocation


class TestExportLendsItsOwnDescriptor(Planted):
    caught_by = "test_an_exported_descriptor_is_the_callers"

    class driver_class(HostDriver):
        def _export(self, handle: int, kind: HandleType) -> int:
            return self._files.descriptor(handle)


class TestMemoryInfoNeverChanges(Planted):
    caught_by = "test_free_memory_falls_with_create_and_rises_with_release"

    class driver_class(HostDriver):
        def memory_info(self) -> MemoryInfo:
            info = super().memory_info()
            return replace(info, free=info.total)


class TestMemoryInfoHasNoSource(Planted):
    caught_by = "test_memory_info_gives_numbers_and_their_source"

    class driver_class(HostDriver):
        def memory_info(self) -> MemoryInfo:
            return replace(super().memory_info(), source="")


class TestOutOfMemoryIsNoTypedError(Planted):
    caught_by = "test_more_than_there_is_raises_out_of_device_memory"

    class driver_class(HostDriver):
        def _create(self, nbytes: int) -> Allocation:
            if nbytes > self.memory_info().free:
                raise MemoryError
            return super()._create(nbytes)


class TestReservationsAreNotAligned(Planted):
    caught_by = "test_a_reservation_starts_on_a_granule_and_is_as_long_as_asked"

    class driver_class(HostDriver):
        def _reserve(self, nbytes: int) -> int:
            return super()._reserve(nbytes + self.granule) + 4096

        def _free(self, address: int, nbytes: int) -> None:
            super()._free(address - 4096, nbytes + self.granule)


class TestAddressesCostMemory(Planted):
    caught_by = "test_addresses_may_exceed_the_memory"

    class driver_class(HostDriver):
        def _reserve(self, nbytes: int) -> int:
            if nbytes > self.memory_info().total:
                raise DriverError(
                    "host: too much (ENOMEM)", driver="host", call="mmap", code=errno.ENOMEM, name="ENOMEM"
                )
            return super()._reserve(nbytes)


class TestTorchMeansAnotherDevice(Planted):
    caught_by = "test_dlpack_and_torch_mean_the_same_device"

    class driver_class(HostDriver):
        @property
        def torch_device(self) -> str:
            return "cuda:0"


class TestSaysItIsVideoMemory(Planted):
    caught_by = "test_connectors_are_told_which_memory_it_is"

    class driver_class(HostDriver):
        memory_kind = "VRAM"


class TestRefusalsHaveNoName(Planted):
    caught_by = "test_a_refusal_says_whose_and_which_call_it_was"

    class driver_class(HostDriver):
        def _refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
            return DriverError(f"host: {verb} of {what}", driver="host", call=verb, code=22)


class TestWorksInOneThreadOnly(Planted):
    caught_by = "test_every_verb_works_in_a_thread_of_its_own"

    class driver_class(HostDriver):
        def __init__(self) -> None:
            super().__init__()
            self._thread = threading.get_ident()

        def _reserve(self, nbytes: int) -> int:
            if threading.get_ident() != self._thread:
                raise DriverError("host: no context (EINVAL)", driver="host", call="mmap", code=22, name="EINVAL")
            return super()._reserve(nbytes)


class TestGoesOnAfterAFork(Planted):
    caught_by = "test_after_a_fork_every_verb_says_so"

    class driver_class(HostDriver):
        def check_process(self, event: str) -> None:
            """Whatever process this is."""


class TestSaysAnotherSize(Planted):
    caught_by = "test_an_allocation_says_how_large_it_is"

    class driver_class(HostDriver):
        def _create(self, nbytes: int) -> Allocation:
            return replace(super()._create(nbytes), nbytes=Bytes(self.granule))


class TestUsesIdsAgain(Planted):
    caught_by = "test_an_id_is_never_used_again"

    class driver_class(HostDriver):
        _few: ClassVar[int] = 0

        def _create(self, nbytes: int) -> Allocation:
            type(self)._few += 1
            return replace(super()._create(nbytes), id=-(self._few % 16))


class TestGranuleIsThePage(Planted):
    caught_by = "test_the_granule_is_the_least_multiple_of_the_drivers_own_from_2_mib_up"

    class driver_class(HostDriver):
        def __init__(self) -> None:
            super().__init__()
            vars(self)["granule"] = 4096
