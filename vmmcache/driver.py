"""What a driver of virtual memory does: a dozen plain verbs on one device.

Three handles, each with the one verb that undoes it: a `Reservation` is addresses without memory (``reserve`` /
``free``), an `Allocation` is memory without an address (``create`` / ``release``), a `Mapping` joins one of each
(``map`` / ``unmap``). Memory that is mapped cannot be touched before it is ``grant``-ed.

A vendor implements the underscored verbs, which speak integers; callers use the public ones, which check once: what is
wrong by the table of what was given out (`vmmcache.places`) never reaches the vendor's library. The
contract as code is `vmmcache.testing.DriverConformance`: subclass it, give it a driver, and every promise made
here is a test.
"""

from __future__ import annotations

import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Final, Literal, TypeVar

from vmmcache.errors import AlignmentError, ConfigError, DriverError, DriverUnavailable, OutOfDeviceMemory, StateError
from vmmcache.handles import Allocation, Granularity, HandleType, Held, Mapping, MemoryInfo, Reservation
from vmmcache.places import Places, Wrong
from vmmcache.units import ADDRESSES, MIB, Address, Bytes, align_up, as_count

__all__ = ["Allocation", "Granularity", "HandleType", "Held", "Mapping", "MemoryInfo", "Reservation", "VmmDriver"]

GRANULE_FLOOR: Final = 2 * MIB
"""ROCm reports a granularity of 4 KiB; a handle (and on some versions a file descriptor) per 4 KiB does not scale."""

T = TypeVar("T")
_allocation_ids = itertools.count(1)
_NO_CONTEXT: Final = nullcontext()


class VmmDriver(ABC):
    """Virtual memory of one device. Sizes and offsets are bytes and multiples of `granule`.

    Every verb either does the whole of what it says or raises and has done nothing. A verb of a driver that was opened
    before a fork raises StateError in the child: vendors' contexts do not survive a fork.
    """

    name: ClassVar[str]
    """The driver's name, the part of a device string before the colon."""
    device_type: ClassVar[str]
    """What connectors call the device: ``"cpu"``, ``"cuda"``, ``"rocm"``, or a stranger's own word."""
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]]
    """What connectors call the memory."""
    fresh_is_zero: ClassVar[bool] = False
    """True only where the platform guarantees that new memory reads as zero; then nothing is spent on zeroing it."""
    fds_per_allocation: int = 0
    """File descriptors that a live allocation holds."""
    uniform_chunks: bool = False
    """Whether all allocations of a reservation must have one size, the granule."""
    keeps_memory: bool = False
    """Whether the device gets memory back only when the addresses are freed that it was mapped at (D10)."""
    streams: tuple[int, ...] = ()
    """Handles of the streams whose work touches memory of this device, where its user names them. Then `synchronise`
    waits for these and not for the whole device, and while one of them captures a graph nothing is given or taken."""
    losses: tuple[str, ...] = ()
    """What memory could have and has not, a sentence each: handle types and RDMA that were tried and refused (D9)."""

    def __init__(self, index: int = 0) -> None:
        self.index: Final = index
        self._pid: Final = os.getpid()
        # Re-entrant, because a view that dies in the middle of a call may give its region back from here.
        self.__lock = threading.RLock()
        self.__places = Places(self._refuse)
        self.__allocations: dict[int, Allocation] = {}
        granularity = self.granularity()
        self.granule: Final = align_up(max(granularity.minimum, GRANULE_FLOOR), granularity.minimum)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.device}>"

    # What the device is ---------------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The device string that opens this driver again, for example ``"cuda:0"``."""
        return f"{self.name}:{self.index}"

    @property
    @abstractmethod
    def dlpack_device(self) -> tuple[int, int]:
        """DLPack's device type (CPU 1, CUDA 2, ROCM 10) and device number."""

    @property
    @abstractmethod
    def torch_device(self) -> str:
        """What torch calls the device."""

    @abstractmethod
    def granularity(self) -> Granularity:
        """The driver's own mapping unit. Called once, before anything else of the instance is ready."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Free and total memory now."""

    @property
    def held(self) -> Held:
        """What is out: all zero when everybody has closed what they had (I3)."""
        with self.__lock:
            reservations, mappings = self.__places.counts()
            return Held(reservations, mappings, len(self.__allocations))

    def current(self) -> AbstractContextManager[object]:
        """Make the device current in this thread for the calls inside, and leave the thread as it was (D7).

        Verbs enter it, each for itself, before they call the vendor. An operation of several enters it once, and then
        entering it again inside costs nothing. Drivers whose calls need no context have nothing to do.
        """
        return _NO_CONTEXT

    def check_not_capturing(self, event: str) -> None:  # noqa: B027 -- for drivers that know no capture, this is all
        """Raise StateError while work of this process on the device is being recorded instead of done (D13).

        A graph capture forbids to wait for the device, and what is recorded would see memory that was changed since.
        """

    # Addresses ------------------------------------------------------------------------------------------------------

    def reserve(self, nbytes: int, *, at: int | None = None) -> Reservation:
        """Set addresses aside: anywhere, or, if they are free, `at` an address.

        Raises
        ------
        AlignmentError
            `nbytes` is no multiple of the granule.
        DriverError
            The vendor refused, for example because the address space is too small.
        """
        self.check_process("reserve")
        nbytes = self.__size(nbytes)
        with self.__lock, self.current():
            address = self._reserve(nbytes) if at is None else self._reserve_at(at, nbytes)
            self.__places.reserve(address, nbytes)
        return Reservation(Address(address), Bytes(nbytes))

    def free(self, reservation: Reservation) -> None:
        """Give addresses back: exactly a reservation, and nothing may be mapped in it any more (I2)."""
        self.check_process("free")
        with self.__lock:
            self.__places.check_free(reservation.address, reservation.nbytes)
            with self.current():
                self._free(reservation.address, reservation.nbytes)
            self.__places.free(reservation.address)

    # Memory ---------------------------------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Allocation:
        """Make one allocation. Its bytes read as zero only where `fresh_is_zero`.

        Raises
        ------
        AlignmentError
            `nbytes` is no multiple of the granule.
        OutOfDeviceMemory
            There is not enough, also after idle memory that this process can spare was given back and the call
            repeated once.
        """
        self.check_process("create")
        nbytes = self.__size(nbytes)
        with self.current():
            allocation = self._trying_twice(lambda: self._create(nbytes))
        self.__allocations[allocation.id] = allocation
        return allocation

    def release(self, allocation: Allocation) -> None:
        """Give an allocation back. What is still mapped stays readable, and stays paid for, until it is unmapped."""
        self.check_process("release")
        with self.__lock:
            self.__check_live("release", allocation)
            with self.current():
                self._release(allocation.handle)
            del self.__allocations[allocation.id]

    # Addresses and memory together ----------------------------------------------------------------------------------

    def map(self, reservation: Reservation, offset: int, allocation: Allocation) -> Mapping:
        """Put the whole of `allocation` at `offset` of `reservation`. It cannot be touched before `grant`.

        Raises
        ------
        AlignmentError
            `offset` is no multiple of the granule.
        ConfigError
            The range ends past the reservation.
        DriverError
            The vendor refused, for example because something is mapped there.
        """
        self.check_process("map")
        if offset % self.granule:
            raise AlignmentError(f"{self.name}: offset {offset} is no multiple of the granule {self.granule}")
        if not 0 <= offset <= reservation.nbytes - allocation.nbytes:
            raise ConfigError(
                "offset",
                offset,
                f"{allocation.nbytes} bytes there end past the reservation of {reservation.nbytes} bytes",
            )
        with self.__lock:
            self.__check_live("map", allocation)
            self.__places.check_map(reservation.address + offset, allocation.nbytes)
            with self.current():
                self._map(reservation.address + offset, allocation.nbytes, allocation.handle)
            self.__places.map(reservation.address + offset, allocation.nbytes)
        return Mapping(reservation, Bytes(offset), allocation)

    def grant(self, run: Sequence[Mapping], *, writable: bool = True) -> None:
        """Make a run of adjacent mappings readable and, where `writable`, writable, all in one call.

        Only whole mappings, from the start of the first: older ROCm rejects anything else, and CUDA's text does too.

        Raises
        ------
        DriverUnavailable
            Not `writable`, and the driver knows no access for reading only.
        """
        self.check_process("grant")
        if not run:
            raise ConfigError("run", run, "at least one mapping")
        for before, after in itertools.pairwise(run):
            if before.address + before.nbytes != after.address:
                raise ConfigError(
                    "run", run, f"mappings at {before.address:#x} and {after.address:#x} are not adjacent"
                )
        address, nbytes = run[0].address, sum(mapping.nbytes for mapping in run)
        with self.__lock:
            starts = self.__places.check_run(address, nbytes)
            with self.current():
                if writable:
                    self._grant(address, nbytes)
                else:
                    self._grant_reading(address, nbytes)
            self.__places.grant(starts, writable)

    def unmap(self, mapping: Mapping) -> None:
        """Take a mapping away. The caller has made sure that the device is idle with respect to it (I8)."""
        self.check_process("unmap")
        with self.__lock:
            self.__places.check_unmap(mapping.address, mapping.nbytes)
            with self.current():
                self._unmap(mapping.address, mapping.nbytes)
            self.__places.unmap(mapping.address)

    # Contents -------------------------------------------------------------------------------------------------------

    def zero(self, address: int, nbytes: int) -> None:
        """Set granted bytes to zero; done at the latest when `synchronise` returns."""
        if self.__check_access("zero", address, nbytes, writing=True):
            with self.current():
                self._zero(address, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between granted ranges of the device; done at the latest when `synchronise` returns."""
        if self.__check_access("copy", target, nbytes, writing=True) and self.__check_access("copy", source, nbytes):
            with self.current():
                self._copy(target, source, nbytes)

    def read(self, address: int, nbytes: int) -> bytearray:
        """Copy granted bytes to host memory; returns when they are there."""
        if not self.__check_access("read", address, nbytes):
            return bytearray()
        with self.current():
            return self._read(address, nbytes)

    def write(self, address: int, data: bytes | bytearray) -> None:
        """Copy host bytes to granted memory; returns when `data` may be changed."""
        if self.__check_access("write", address, len(data), writing=True):
            with self.current():
                self._write(address, data)

    def synchronise(self) -> None:
        """Wait until the device has done everything that was asked of it."""
        self.check_process("synchronise")
        with self.current():
            self._synchronise()

    # Sharing --------------------------------------------------------------------------------------------------------

    def export_handle(self, allocation: Allocation, kind: HandleType) -> int | bytes:
        """Give a handle by which another process can import `allocation`: a file descriptor, which the caller owns
        and closes, or a fabric handle.

        Raises
        ------
        DriverUnavailable
            The allocation was not created with that kind of handle.
        """
        self.check_process("export_handle")
        if kind not in allocation.handle_types:
            raise DriverUnavailable(
                f"an allocation of {allocation.nbytes} bytes was created without handle type {kind!r}",
                cure=f"This device gives {sorted(allocation.handle_types) or 'none'}; "
                + ("; ".join(self.losses) or "`vmmcache probe` says what it has"),
                driver=self.name,
                call="export_handle",
            )
        self.__check_live("export_handle", allocation)
        with self.current():
            return self._export(allocation.handle, kind)

    def import_handle(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        """Import what another process exported, of exactly `nbytes`. The handle given stays the caller's."""
        self.check_process("import_handle")
        nbytes = self.__size(nbytes)
        with self.current():
            allocation = self._import(shared, kind, nbytes)
        self.__allocations[allocation.id] = allocation
        return allocation

    def export_dmabuf(self, address: int, nbytes: int) -> int:
        """Give a dma-buf descriptor of a granted range, which the caller owns and closes.

        Raises
        ------
        DriverUnavailable
            The platform has no dma-buf of such memory.
        """
        self.__check_access("export_dmabuf", address, nbytes)
        with self.current():
            return self._dmabuf(address, nbytes)

    # For vendors: called with the device current (`current`) -------------------------------------------------------

    @abstractmethod
    def _reserve(self, nbytes: int) -> int: ...
    @abstractmethod
    def _free(self, address: int, nbytes: int) -> None: ...
    def _reserve_at(self, address: int, nbytes: int) -> int:
        raise self._cannot("reserve", "this driver reserves no addresses of the caller's choice")

    @abstractmethod
    def _create(self, nbytes: int) -> Allocation: ...
    @abstractmethod
    def _release(self, handle: int) -> None: ...
    @abstractmethod
    def _map(self, address: int, nbytes: int, handle: int) -> None: ...
    @abstractmethod
    def _grant(self, address: int, nbytes: int) -> None: ...
    @abstractmethod
    def _unmap(self, address: int, nbytes: int) -> None: ...
    def _grant_reading(self, address: int, nbytes: int) -> None:
        raise self._cannot("grant", "this driver grants no access for reading only")

    @abstractmethod
    def _zero(self, address: int, nbytes: int) -> None: ...
    @abstractmethod
    def _copy(self, target: int, source: int, nbytes: int) -> None: ...
    @abstractmethod
    def _read(self, address: int, nbytes: int) -> bytearray: ...
    @abstractmethod
    def _write(self, address: int, data: bytes | bytearray) -> None: ...
    @abstractmethod
    def _synchronise(self) -> None: ...

    def _export(self, handle: int, kind: HandleType) -> int | bytes:
        raise self._cannot("export_handle", "this driver exports no handles")

    def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        raise self._cannot("import_handle", "this driver imports no handles")

    def _dmabuf(self, address: int, nbytes: int) -> int:
        raise self._cannot("export_dmabuf", "this driver exports no dma-buf")

    def _reclaim(self) -> bool:
        """Give back idle device memory that this process can spare; True where a second try is worth it."""
        return False

    def _trying_twice(self, create: Callable[[], T]) -> T:
        """What `create` gives; where memory is out, once more after `_reclaim` (D6)."""
        try:
            return create()
        except OutOfDeviceMemory:
            if not self._reclaim():
                raise
        return create()

    @staticmethod
    def _new_allocation_id() -> int:
        return next(_allocation_ids)

    def _cannot(self, call: str, reason: str) -> DriverUnavailable:
        return DriverUnavailable(reason, cure="Use another way to share memory", driver=self.name, call=call)

    def check_process(self, event: str) -> None:
        """Raise StateError in a child that was forked after the driver was opened."""
        if os.getpid() != self._pid:
            raise StateError(
                f"{self.device}: {event} in process {os.getpid()}, but the driver was opened in process {self._pid} "
                "before a fork; open it again here, or start workers with the spawn method",
                state="forked",
                event=event,
            )

    def _refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        """The error for a request that never reaches the vendor's library. Vendors give it their own words."""
        reason = f"{self.name}: {verb} of {what}: {wrong.name} ({wrong.value})"
        return DriverError(reason, driver=self.name, call=verb, name=wrong.name)

    def __check_live(self, verb: str, allocation: Allocation) -> None:
        if self.__allocations.get(allocation.id) != allocation:
            raise self._refuse(verb, Wrong.NO_SUCH_ALLOCATION, f"allocation {allocation.id}")

    def __check_access(self, verb: str, address: int, nbytes: int, *, writing: bool = False) -> bool:
        """See that bytes may be touched. False where there are none."""
        self.check_process(verb)
        if not as_count("nbytes", nbytes, maximum=ADDRESSES):
            return False
        with self.__lock:
            self.__places.check_access(verb, address, nbytes, writing=writing)
        return True

    def __size(self, nbytes: object) -> int:
        count = as_count("nbytes", nbytes, minimum=1, maximum=ADDRESSES)
        if count % self.granule:
            raise AlignmentError(f"{self.name}: nbytes {count} is no multiple of the granule {self.granule}")
        return count
