"""torch storages that are resized in place: tensors over them keep their shape and find the new memory.

The calls of torch that plain memory is made of, and what their failures mean. Nothing here knows slots, states or
leases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from vmmcache.driver import VmmDriver
from vmmcache.errors import DriverError, DriverUnavailable, OutOfDeviceMemory
from vmmcache.units import format_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["Storages"]

_RESIZE: Final = "UntypedStorage.resize_"


class Storages:
    """A row of storages on one device, at first of no bytes.

    Parameters
    ----------
    device : str
        What torch calls it.
    count : int
        How many.

    Raises
    ------
    DriverUnavailable
        torch is missing or cannot make a tensor on the device.
    """

    def __init__(self, device: str, count: int) -> None:
        try:
            import torch
        except ModuleNotFoundError as error:
            raise DriverUnavailable(
                "plain memory is torch memory, and torch is not installed",
                cure="Install torch (extra `torch`)",
                driver=device,
            ) from error
        try:
            self.device: Final = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:
            raise DriverUnavailable(
                f"this torch cannot make a tensor on {device}: {error}",
                cure="Install the build of torch for the device",
                driver=device,
                call="empty",
            ) from error
        self._torch: Any = torch
        self._storages = [torch.UntypedStorage(0, device=self.device) for _ in range(count)]
        self.allocation_ids: Final = [0] * count
        """The allocation behind each storage: another whenever its size was changed. Unique in this process."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each storage."""
        return tuple(storage.nbytes() for storage in self._storages)

    @property
    def views(self) -> int:
        """Live tensors over any of the storages."""
        # The one reference that is ours does not count. A count that torch uses itself, and has no public name for.
        count = self._torch._C._storage_Use_Count
        return sum(count(storage._cdata) - 1 for storage in self._storages)

    def address(self, index: int) -> int:
        """Where the first byte of a storage is now."""
        return int(self._storages[index].data_ptr())

    def flat(self, index: int) -> torch.Tensor:
        """All bytes of a storage as a tensor over it."""
        storage = self._storages[index]
        empty: torch.Tensor = self._torch.empty(0, dtype=self._torch.uint8, device=self.device)
        return empty.set_(storage, 0, (storage.nbytes(),), (1,))

    # Memory ---------------------------------------------------------------------------------------------------------

    def resize(self, index: int, nbytes: int) -> None:
        """Give a storage another size. Its first bytes stay, new ones read as zero. Needs room for both at once.

        Raises
        ------
        OutOfDeviceMemory, DriverError
            torch cannot. The storage is as it was.
        """
        storage = self._storages[index]
        before = storage.nbytes()
        with self._refusals(_RESIZE, nbytes):
            storage.resize_(nbytes)
        self.allocation_ids[index] = VmmDriver._new_allocation_id()
        if nbytes > before:
            self.flat(index)[before:].zero_()

    def give_back(self) -> None:
        """Let torch hand memory that it keeps for later use back to the device."""
        empty_cache = getattr(self._module, "empty_cache", None)
        if empty_cache is not None:
            empty_cache()

    def synchronise(self) -> None:
        """Wait until the device has done everything that was asked of it."""
        if self._module is not None:
            self._module.synchronize(self.device)

    # Contents -------------------------------------------------------------------------------------------------------

    def backup(self) -> list[torch.Tensor]:
        """Copies of all storages in host memory."""
        self.synchronise()
        with self._refusals("empty", sum(self.sizes), device="cpu"):
            copies = [self._torch.empty(size, dtype=self._torch.uint8) for size in self.sizes]
        for index, copy in enumerate(copies):
            copy.copy_(self.flat(index))
        return copies

    def refill(self, copies: list[torch.Tensor]) -> None:
        """Put `backup` copies back."""
        for index, copy in enumerate(copies):
            self.flat(index).copy_(copy)

    def read(self, index: int, start: int, nbytes: int) -> bytearray:
        """Copy bytes to the host."""
        data = bytearray(nbytes)
        if nbytes:
            self._torch.frombuffer(data, dtype=self._torch.uint8).copy_(self.flat(index)[start : start + nbytes])
        return data

    def write(self, index: int, start: int, data: bytes | bytearray) -> None:
        """Copy bytes from the host."""
        if data:
            # A bytearray of our own: torch warns of buffers that it could not write to.
            source = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
            self.flat(index)[start : start + len(data)].copy_(source)

    def copy(self, index: int, target: int, source: int, nbytes: int) -> None:
        """Copy bytes within a storage; the ranges do not overlap."""
        flat = self.flat(index)
        flat[target : target + nbytes].copy_(flat[source : source + nbytes])

    # ----------------------------------------------------------------------------------------------------------------

    @property
    def _module(self) -> Any:
        """torch's module for the device; None for host memory, which has nothing to wait for and no cache."""
        return None if self.device.type == "cpu" else getattr(self._torch, self.device.type)

    @contextmanager
    def _refusals(self, call: str, nbytes: int, device: str = "") -> Iterator[None]:
        name = device or str(self.device)
        try:
            yield
        except RuntimeError as error:
            # On the host there is no type for it.
            if isinstance(error, self._torch.OutOfMemoryError) or name == "cpu":
                raise OutOfDeviceMemory(
                    f"{name}: {call}: no room for {format_bytes(nbytes)}: {str(error).splitlines()[0]}",
                    driver=name,
                    call=call,
                    requested=nbytes,
                    free=None,
                    committed=sum(self.sizes),
                    cure="Commit less, or free some",
                ) from error
            raise DriverError(f"{name}: {call} of {format_bytes(nbytes)}: {error}", driver=name, call=call) from error
