"""Virtual memory of one HIP device, by the verbs of ``hip_runtime_api.h``."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Literal, NoReturn

from vmmcache import (
    Allocation,
    DriverError,
    DriverUnavailable,
    Granularity,
    MemoryInfo,
    OutOfDeviceMemory,
    StateError,
    VmmDriver,
)
from vmmcache.driver import HandleType
from vmmcache.fds import FD_CURE, room_for
from vmmcache.places import Wrong
from vmmcache.quirks import applying
from vmmcache.units import Bytes, format_bytes
from vmmcache_hip import _library
from vmmcache_hip._api import Api, Code
from vmmcache_hip._device import CurrentDevice
from vmmcache_hip._properties import Properties, best_properties, candidates
from vmmcache_hip._quirks import QUIRKS
from vmmcache_hip._version import check_version, version_of

__all__ = ["HipDriver", "open_hip"]

_FABRIC_BYTES: Final = 64


def open_hip(index: int) -> HipDriver:
    """Open a device, or say why it cannot be used."""
    _library.load()
    return HipDriver(Api(), index)


class HipDriver(VmmDriver):
    """Virtual memory of one HIP device.

    Sources of the rules kept here: ``hip_runtime_api.h``, the sources of clr, and the quirks of `_quirks`.
    """

    name: ClassVar[str] = "hip"
    device_type: ClassVar[str] = "rocm"
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]] = "VRAM"

    def __init__(self, api: Api, index: int) -> None:
        self._api = api
        version = version_of(api.version)
        self.uniform_chunks = check_version(version)
        self._quirks = applying(QUIRKS, version)
        self.keeps_memory = "keeps_memory" in self._quirks
        self.fds_per_allocation = int("fd_per_allocation" in self._quirks)
        api.call("hipInit", 0)
        count = api.call("hipGetDeviceCount")
        if index >= count:
            raise DriverUnavailable(
                f"there is no device {index}; the runtime finds {count}",
                cure="Check the index against `vmmcache probe` and HIP_VISIBLE_DEVICES",
                driver="hip",
                call="hipGetDeviceCount",
            )
        self._index = index
        self._unproven: set[int] = set()
        """Addresses of mappings that were never granted, on runtimes that say success of a map that failed."""
        if not self._attribute("hipDeviceAttributeVirtualMemoryManagementSupported"):
            off = os.environ.get("HIP_VMEM_MANAGE_SUPPORT") == "0"
            raise DriverUnavailable(
                "HIP_VMEM_MANAGE_SUPPORT=0 turns virtual memory management off"
                if off
                else f"device {index} says that it has no virtual memory management",
                cure="Unset HIP_VMEM_MANAGE_SUPPORT"
                if off
                else "Update the kernel (amdgpu) and ROCm, or use a newer GPU",
                driver="hip",
                call="hipDeviceGetAttribute",
            )
        self._current = CurrentDevice(api, index)
        names = api.names
        self._access, self._reading = (names.hipMemAccessDesc.allocate(1) for _ in range(2))
        for access in self._access, self._reading:
            access.location.type = names.hipMemLocationType.hipMemLocationTypeDevice
            access.location.id = index
        self._access.flags = names.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite
        self._reading.flags = names.hipMemAccessFlags.hipMemAccessFlagsProtRead
        self._use(Properties(None, rdma=False))
        self._rdma_capable: bool | None = None
        with self._current:
            best, capable, self.losses = best_properties(candidates(self._attribute), self._try)
            self._use(best)
            self._rdma_capable = capable
            super().__init__(index)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return 10, self.index

    @property
    def torch_device(self) -> str:
        return f"cuda:{self.index}"  # ROCm builds of torch call their devices cuda

    def granularity(self) -> Granularity:
        options = self._api.names.hipMemAllocationGranularity_flags
        return Granularity(
            minimum=self._granularity(options.hipMemAllocationGranularityMinimum),
            recommended=self._granularity(options.hipMemAllocationGranularityRecommended),
        )

    def memory_info(self) -> MemoryInfo:
        with self._current:
            free, total = self._api.call("hipMemGetInfo")
        return MemoryInfo(free=free, total=total, source="driver")

    def current(self) -> AbstractContextManager[object]:
        return self._current

    def check_not_capturing(self, event: str) -> None:
        if capturing := self._capturing():
            raise StateError(
                f"{self.device}: {event} while {capturing} is capturing a graph; do it before or after",
                state="capturing",
                event=event,
            )

    def _capturing(self) -> str | None:
        """Which stream records its work instead of doing it: one that was named, or torch's current one."""
        for stream in self.streams:
            with self._current:
                if int(self._api.call("hipStreamIsCapturing", stream)):
                    return f"stream {stream:#x}"
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        with torch.cuda.device(self.index):
            return "torch's current stream" if torch.cuda.is_current_stream_capturing() else None

    # Addresses ------------------------------------------------------------------------------------------------------

    def _reserve(self, nbytes: int) -> int:
        return self._reserve_at(0, nbytes)

    def _reserve_at(self, address: int, nbytes: int) -> int:
        try:
            found = int(self._api.call("hipMemAddressReserve", nbytes, self.granule, address, 0))
        except DriverError as error:
            if error.code != Code.INVALID_VALUE and error.code != Code.OUT_OF_MEMORY:
                raise
            # Some stacks refuse every alignment but 0 (vLLM #43022). What they give then is looked at below.
            found = int(self._api.call("hipMemAddressReserve", nbytes, 0, address, 0))
        if found % self.granule:
            self._free(found, nbytes)
            raise DriverError(
                f"hip: hipMemAddressReserve gave {found:#x}, which is no multiple of the granule {self.granule}",
                driver="hip",
                call="hipMemAddressReserve",
            )
        return found

    def _free(self, address: int, nbytes: int) -> None:
        self._api.call("hipMemAddressFree", address, nbytes)

    # Memory ---------------------------------------------------------------------------------------------------------

    def _create(self, nbytes: int) -> Allocation:
        missing = room_for(self.held.allocations + 1) if self.fds_per_allocation else 0
        return self._allocation(self._memory(nbytes, missing), nbytes)

    def _memory(self, nbytes: int, missing_fds: int = 0) -> int:
        try:
            return int(self._api.call("hipMemCreate", nbytes, self._prop, 0))
        except DriverError as error:
            if error.code == Code.OUT_OF_MEMORY:
                self._out_of_memory(nbytes, error, missing_fds)
            raise

    def _release(self, handle: int) -> None:
        self._api.call("hipMemRelease", handle)

    def _reclaim(self) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        torch.cuda.empty_cache()
        return True

    # Addresses and memory together ----------------------------------------------------------------------------------

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        self._api.call("hipMemMap", address, nbytes, 0, handle, 0)
        if "map_errors_dropped" in self._quirks:
            self._unproven.add(address)

    def _grant(self, address: int, nbytes: int) -> None:
        self._set_access(address, nbytes, self._access)

    def _grant_reading(self, address: int, nbytes: int) -> None:
        self._set_access(address, nbytes, self._reading)

    def _set_access(self, address: int, nbytes: int, access: Any) -> None:
        self._api.call("hipMemSetAccess", address, nbytes, access, 1)
        self._unproven = {start for start in self._unproven if not address <= start < address + nbytes}

    def _unmap(self, address: int, nbytes: int) -> None:
        try:
            self._api.call("hipMemUnmap", address, nbytes)
        except DriverError as error:
            # Where mapping said success and did nothing (quirk map_errors_dropped), there is nothing to take away.
            if error.code != Code.INVALID_VALUE or address not in self._unproven or self._is_mapped(address):
                raise
        self._unproven.discard(address)

    def _is_mapped(self, address: int) -> bool:
        try:
            self._api.call("hipMemGetAccess", self._access.location, address)
        except DriverError as error:
            return error.code != Code.INVALID_VALUE
        return True

    # Contents -------------------------------------------------------------------------------------------------------

    def _zero(self, address: int, nbytes: int) -> None:
        self._api.call("hipMemsetD8", address, 0, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._memcpy(target, source, nbytes, "DeviceToDevice")

    def _read(self, address: int, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        self._memcpy(data, address, nbytes, "DeviceToHost")
        return data

    def _write(self, address: int, data: bytes | bytearray) -> None:
        self._memcpy(address, data, len(data), "HostToDevice")

    def _synchronise(self) -> None:
        if not self.streams:
            self._api.call("hipDeviceSynchronize")
        # The null stream as well: what is zeroed and copied here goes there.
        for stream in (0, *self.streams) if self.streams else ():
            self._api.call("hipStreamSynchronize", stream)

    # Sharing --------------------------------------------------------------------------------------------------------

    def _export(self, handle: int, kind: HandleType) -> int | bytes:
        shared = (ctypes.c_ubyte * _FABRIC_BYTES)() if kind == "fabric" else ctypes.c_int(-1)
        self._api.call("hipMemExportToShareableHandle", ctypes.addressof(shared), handle, self._handle_type(kind), 0)
        return bytes(shared) if isinstance(shared, ctypes.Array) else shared.value

    def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        return self._allocation(self._import_handle(shared, kind), nbytes)

    def _import_handle(self, shared: int | bytes, kind: HandleType) -> int:
        if isinstance(shared, bytes):
            buffer: Any = (ctypes.c_ubyte * len(shared)).from_buffer_copy(shared)
            given = ctypes.addressof(buffer)
        else:
            buffer = ctypes.c_int(shared)
            given = ctypes.addressof(buffer) if "import_by_pointer" in self._quirks else shared
        return int(self._api.call("hipMemImportFromShareableHandle", given, self._handle_type(kind)))

    def _dmabuf(self, address: int, nbytes: int) -> int:
        if not self._attribute("hipDeviceAttributeDmaBufSupported"):
            raise self._cannot("hipMemGetHandleForAddressRange", "the device says that it has no dma-buf")
        fd = ctypes.c_int(-1)
        kind = self._api.names.hipMemRangeHandleType.hipMemRangeHandleTypeDmaBufFd
        self._api.call("hipMemGetHandleForAddressRange", ctypes.addressof(fd), address, nbytes, kind, 0)
        return fd.value

    # ----------------------------------------------------------------------------------------------------------------

    def _attribute(self, name: str) -> int:
        try:
            return int(self._api.call("hipDeviceGetAttribute", self._api.names.hipDeviceAttribute_t[name], self._index))
        except DriverError as error:
            # An older runtime does not know a newer attribute: that is a no, not a failure.
            if error.code == Code.INVALID_VALUE:
                return 0
            raise

    def _use(self, properties: Properties) -> None:
        self._properties = properties
        self._prop = properties.as_struct(self._index)

    def _try(self, properties: Properties) -> bool | None:
        """One granule, there and back. Whether the runtime says that a NIC may reach the memory."""
        self._use(properties)
        api = self._api
        minimum = self._granularity(api.names.hipMemAllocationGranularity_flags.hipMemAllocationGranularityMinimum)
        address = api.call("hipMemAddressReserve", minimum, 0, 0, 0)
        try:
            handle = self._trying_twice(lambda: self._memory(minimum))
            try:
                api.call("hipMemMap", address, minimum, 0, handle, 0)
                try:
                    api.call("hipMemSetAccess", address, minimum, self._access, 1)
                    capable = self._reachable(int(address)) if properties.rdma else None
                finally:
                    self._give_back("hipMemUnmap", address, minimum)
                if properties.handle_type is not None:
                    self._try_handle(handle, properties.handle_type)
            finally:
                self._give_back("hipMemRelease", handle)
        finally:
            self._give_back("hipMemAddressFree", address, minimum)
        return capable

    def _try_handle(self, handle: int, kind: HandleType) -> None:
        shared = self._export(handle, kind)
        try:
            again = self._import_handle(shared, kind)
        finally:
            if isinstance(shared, int):
                os.close(shared)
        self._give_back("hipMemRelease", again)

    def _reachable(self, address: int) -> bool:
        answer = ctypes.c_int(0)
        kind = self._api.names.hipPointer_attribute.HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        self._api.call("hipPointerGetAttribute", ctypes.addressof(answer), kind, address)
        if not answer.value:
            raise DriverError(
                "hip: hipPointerGetAttribute: memory created with the RDMA flag is not reachable by RDMA",
                driver="hip",
                call="hipPointerGetAttribute",
            )
        return True

    def _give_back(self, call: str, *arguments: Any) -> None:
        """What a trial took. Once more where it is refused, because nobody is left who could try it later."""
        try:
            self._api.call(call, *arguments)
        except DriverError:
            self._api.call(call, *arguments)

    def _granularity(self, option: Any) -> int:
        return int(self._api.call("hipMemGetAllocationGranularity", self._prop, option))

    def _handle_type(self, kind: HandleType) -> Any:
        return self._api.names.hipMemAllocationHandleType({"posix_fd": 1, "fabric": 8}[kind])

    def _memcpy(self, target: Any, source: Any, nbytes: int, kind: str) -> None:
        self._api.call("hipMemcpy", target, source, nbytes, self._api.names.hipMemcpyKind[f"hipMemcpy{kind}"])

    def _allocation(self, handle: int, nbytes: int) -> Allocation:
        return Allocation(
            handle,
            Bytes(nbytes),
            id=self._new_allocation_id(),
            rdma_capable=bool(self._rdma_capable),
            handle_types=self._properties.handle_types,
        )

    def _refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        return self._api.refuse(verb, wrong, what)

    def _out_of_memory(self, nbytes: int, error: DriverError, missing_fds: int) -> NoReturn:
        try:
            info: MemoryInfo | None = self.memory_info()
        except DriverError:
            info = None  # the error that is on its way matters more than its numbers
        known = f"{format_bytes(info.free)} of {format_bytes(info.total)} are free" if info else "free memory unknown"
        few_fds = missing_fds or (self.fds_per_allocation and info and info.free > nbytes)
        raise OutOfDeviceMemory(
            f"hip: {error.call} of {format_bytes(nbytes)} on device {self._index}: "
            f"{error.name} ({error.code}), {known}",
            cure=FD_CURE
            if few_fds
            else "Commit less, or free memory that other processes, or torch's cache here, hold",
            driver="hip",
            call=error.call,
            requested=nbytes,
            free=info.free if info else None,
            code=error.code,
            name=error.name,
        ) from error
