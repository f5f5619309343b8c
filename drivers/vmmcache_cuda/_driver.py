"""Virtual memory of one CUDA device, by the verbs of ``cuda.h``."""

from __future__ import annotations

import os
import sys
import weakref
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
from vmmcache.places import Wrong
from vmmcache.quirks import applying
from vmmcache.units import Bytes, format_bytes
from vmmcache_cuda import _library
from vmmcache_cuda._api import Api, Code
from vmmcache_cuda._context import PrimaryContext
from vmmcache_cuda._properties import Properties, best_properties, candidates
from vmmcache_cuda._quirks import QUIRKS, platform

__all__ = ["CudaDriver", "open_cuda"]

_READ, _READ_WRITE = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_READ, _PROT_READWRITE
_PCIE: Final = 1  # CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, CUDA 12.8 and newer


def open_cuda(index: int) -> CudaDriver:
    """Open a device, or say why it cannot be used."""
    _library.load()
    return CudaDriver(Api(), index)


class CudaDriver(VmmDriver):
    """Virtual memory of one CUDA device.

    Sources of the rules kept here: ``cuda.h`` 13.0 (documentation of each function), and the quirks of `_quirks`.
    """

    name: ClassVar[str] = "cuda"
    device_type: ClassVar[str] = "cuda"
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]] = "VRAM"

    def __init__(self, api: Api, index: int) -> None:
        self._api = api
        api.call("cuInit", 0)
        count = api.call("cuDeviceGetCount")
        if index >= count:
            raise DriverUnavailable(
                f"there is no device {index}; the library finds {count}",
                cure="Check the index against `vmmcache probe` and CUDA_VISIBLE_DEVICES",
                driver="cuda",
                call="cuDeviceGetCount",
            )
        self._device = api.call("cuDeviceGet", index)
        if not self._attribute("CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED"):
            raise DriverUnavailable(
                f"device {index} says that it has no virtual memory management",
                cure="Use a newer GPU or driver, or, on a virtual GPU, a profile that allows it",
                driver="cuda",
                call="cuDeviceGetAttribute",
            )
        self._context = PrimaryContext(api, self._device)
        weakref.finalize(self, _release, self._context, os.getpid())
        self._access = [_access(api, index, _READ_WRITE)]
        self._reading = [_access(api, index, _READ)]
        self._use(Properties(None, rdma=False), index)
        self._rdma_capable = False
        quirks = applying(QUIRKS, divmod(api.call("cuDriverGetVersion") // 10, 100), platform())
        with self._context:
            best, capable, self.losses = best_properties(
                candidates(self._attribute, quirks), lambda candidate: self._try(candidate, index)
            )
            self._use(best, index)
            self._rdma_capable = capable
            super().__init__(index)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return 2, self.index

    @property
    def torch_device(self) -> str:
        return f"cuda:{self.index}"

    def granularity(self) -> Granularity:
        options = self._api.names.CUmemAllocationGranularity_flags
        return Granularity(
            minimum=self._granularity(options.CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            recommended=self._granularity(options.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        )

    def memory_info(self) -> MemoryInfo:
        with self._context:
            free, total = self._api.call("cuMemGetInfo")
        return MemoryInfo(free=free, total=total, source="driver")

    def current(self) -> AbstractContextManager[object]:
        return self._context

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
            with self._context:
                if int(self._api.call("cuStreamIsCapturing", stream)):
                    return f"stream {stream:#x}"
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        with torch.cuda.device(self.index):
            return "torch's current stream" if torch.cuda.is_current_stream_capturing() else None

    # Addresses ------------------------------------------------------------------------------------------------------

    def _reserve(self, nbytes: int) -> int:
        address = int(self._api.call("cuMemAddressReserve", nbytes, self.granule, 0, 0))
        if address % self.granule:
            self._api.call("cuMemAddressFree", address, nbytes)
            raise DriverError(
                f"cuda: cuMemAddressReserve gave {address:#x}, which is no multiple of the granule {self.granule}",
                driver="cuda",
                call="cuMemAddressReserve",
            )
        return address

    def _free(self, address: int, nbytes: int) -> None:
        self._api.call("cuMemAddressFree", address, nbytes)

    # Memory ---------------------------------------------------------------------------------------------------------

    def _create(self, nbytes: int) -> Allocation:
        return self._allocation(self._memory(nbytes), nbytes)

    def _memory(self, nbytes: int) -> int:
        try:
            return int(self._api.call("cuMemCreate", nbytes, self._prop, 0))
        except DriverError as error:
            if error.code == Code.OUT_OF_MEMORY:
                self._out_of_memory(nbytes, error)
            raise

    def _release(self, handle: int) -> None:
        self._api.call("cuMemRelease", handle)

    def _reclaim(self) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        torch.cuda.empty_cache()
        return True

    # Addresses and memory together ----------------------------------------------------------------------------------

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        self._api.call("cuMemMap", address, nbytes, 0, handle, 0)

    def _grant(self, address: int, nbytes: int) -> None:
        self._api.call("cuMemSetAccess", address, nbytes, self._access, 1)

    def _grant_reading(self, address: int, nbytes: int) -> None:
        try:
            self._api.call("cuMemSetAccess", address, nbytes, self._reading, 1)
        except DriverError as error:
            if error.code not in (Code.INVALID_VALUE, Code.NOT_SUPPORTED):
                raise
            # The range is one that could be granted, or it would not have come this far: it is the access.
            raise DriverUnavailable(
                f"the device grants no access for reading only ({error.name}, {error.code})",
                cure="Let the importer write as well (writable=True), or copy what it shall not change",
                driver="cuda",
                call=error.call,
            ) from error

    def _unmap(self, address: int, nbytes: int) -> None:
        self._api.call("cuMemUnmap", address, nbytes)

    # Contents -------------------------------------------------------------------------------------------------------

    def _zero(self, address: int, nbytes: int) -> None:
        self._api.call("cuMemsetD8", address, 0, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._api.call("cuMemcpyDtoD", target, source, nbytes)

    def _read(self, address: int, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        self._api.call("cuMemcpyDtoH", data, address, nbytes)
        return data

    def _write(self, address: int, data: bytes | bytearray) -> None:
        self._api.call("cuMemcpyHtoD", address, data, len(data))

    def _synchronise(self) -> None:
        if not self.streams:
            self._api.call("cuCtxSynchronize")
        # The null stream as well: what is zeroed and copied here goes there.
        for stream in (0, *self.streams) if self.streams else ():
            self._api.call("cuStreamSynchronize", stream)

    # Sharing --------------------------------------------------------------------------------------------------------

    def _export(self, handle: int, kind: HandleType) -> int | bytes:
        shared = self._api.call("cuMemExportToShareableHandle", handle, self._handle_type(kind), 0)
        return int(shared) if kind == "posix_fd" else bytes(shared.data)

    def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        handle = int(self._api.call("cuMemImportFromShareableHandle", shared, self._handle_type(kind)))
        return self._allocation(handle, nbytes)

    def _dmabuf(self, address: int, nbytes: int) -> int:
        kind = self._api.names.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        if not self._attribute("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"):
            raise DriverUnavailable(
                "the device says that it has no dma-buf",
                cure="Install NVIDIA's open kernel modules, or let the connector use nvidia-peermem",
                driver="cuda",
                call="cuMemGetHandleForAddressRange",
            )
        try:
            return int(self._api.call("cuMemGetHandleForAddressRange", address, nbytes, kind, _PCIE))
        except DriverError as error:
            if error.code not in (Code.INVALID_VALUE, Code.NOT_SUPPORTED):
                raise
            # Older drivers do not know the flag, and some platforms refuse it (quirk dmabuf_no_pcie).
        try:
            return int(self._api.call("cuMemGetHandleForAddressRange", address, nbytes, kind, 0))
        except DriverError as error:
            if error.code != Code.NOT_SUPPORTED:
                raise
            raise DriverUnavailable(
                f"the device says that it has dma-buf, and exports none ({error.name}, {error.code})",
                cure="Let the connector use nvidia-peermem; in a virtual machine, ask whoever passes the GPU through",
                driver="cuda",
                call=error.call,
            ) from error

    # ----------------------------------------------------------------------------------------------------------------

    def _attribute(self, name: str) -> int:
        try:
            return int(
                self._api.call("cuDeviceGetAttribute", getattr(self._api.names.CUdevice_attribute, name), self._device)
            )
        except DriverError as error:
            # An older driver does not know a newer attribute: that is a no, not a failure.
            if error.code == Code.INVALID_VALUE:
                return 0
            raise

    def _use(self, properties: Properties, index: int) -> None:
        self._properties = properties
        self._prop = properties.as_struct(self._api, index)

    def _try(self, properties: Properties, index: int) -> bool:
        """One granule, there and back. Whether the driver says that a NIC may reach the memory."""
        self._use(properties, index)
        api, kind = self._api, self._api.names.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        nbytes = self._granularity(api.names.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        # Aligned, because the header promises no more than a host page without, and cuMemMap wants the granularity.
        address = api.call("cuMemAddressReserve", nbytes, nbytes, 0, 0)
        try:
            handle = self._trying_twice(lambda: self._memory(nbytes))
            try:
                api.call("cuMemMap", address, nbytes, 0, handle, 0)
                try:
                    api.call("cuMemSetAccess", address, nbytes, self._access, 1)
                    capable = bool(api.call("cuPointerGetAttribute", kind, address))
                finally:
                    self._give_back("cuMemUnmap", address, nbytes)
                if properties.handle_type is not None:
                    self._try_handle(handle, properties.handle_type)
            finally:
                self._give_back("cuMemRelease", handle)
        finally:
            self._give_back("cuMemAddressFree", address, nbytes)
        if properties.rdma and not capable:
            raise DriverError(
                "cuda: cuPointerGetAttribute: memory created with the RDMA flag is not reachable by RDMA",
                driver="cuda",
                call="cuPointerGetAttribute",
            )
        return capable

    def _try_handle(self, handle: int, kind: HandleType) -> None:
        shared = self._export(handle, kind)
        try:
            again = int(self._api.call("cuMemImportFromShareableHandle", shared, self._handle_type(kind)))
        finally:
            if isinstance(shared, int):
                os.close(shared)
        self._give_back("cuMemRelease", again)

    def _give_back(self, call: str, *arguments: Any) -> None:
        """What a trial took. Once more where it is refused, because nobody is left who could try it later."""
        try:
            self._api.call(call, *arguments)
        except DriverError:
            self._api.call(call, *arguments)

    def _granularity(self, option: Any) -> int:
        return int(self._api.call("cuMemGetAllocationGranularity", self._prop, option))

    def _handle_type(self, kind: HandleType) -> Any:
        return self._api.names.CUmemAllocationHandleType({"posix_fd": 1, "fabric": 8}[kind])

    def _allocation(self, handle: int, nbytes: int) -> Allocation:
        return Allocation(
            handle,
            Bytes(nbytes),
            id=self._new_allocation_id(),
            rdma_capable=self._rdma_capable,
            handle_types=self._properties.handle_types,
        )

    def _refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        return self._api.refuse(verb, wrong, what)

    def _out_of_memory(self, nbytes: int, error: DriverError) -> NoReturn:
        try:
            info: MemoryInfo | None = self.memory_info()
        except DriverError:
            info = None  # the error that is on its way matters more than its numbers
        known = f"{format_bytes(info.free)} of {format_bytes(info.total)} are free" if info else "free memory unknown"
        raise OutOfDeviceMemory(
            f"cuda: {error.call} of {format_bytes(nbytes)} on device {int(self._device)}: "
            f"{error.name} ({error.code}), {known}",
            cure="Commit less, or free memory that other processes, or torch's cache in this one, hold",
            driver="cuda",
            call=error.call,
            requested=nbytes,
            free=info.free if info else None,
            code=error.code,
            name=error.name,
        ) from error


def _access(api: Api, index: int, flags: int) -> Any:
    access = api.names.CUmemAccessDesc()
    access.location.type = api.names.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = index
    access.flags = api.names.CUmemAccess_flags(flags)
    return access


def _release(context: PrimaryContext, pid: int) -> None:
    # A forked child holds no context of its parent's.
    if os.getpid() == pid:
        context.release()
