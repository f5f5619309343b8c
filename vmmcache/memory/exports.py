"""What is handed to another process, or to a NIC: handles of memory, each closed once by whoever asked for it."""

from __future__ import annotations

import os
import warnings
from types import TracebackType
from typing import Final, Literal, Self

from vmmcache.errors import StateError

__all__ = ["ExportKind", "ExportedMemory"]

ExportKind = Literal["posix_fd", "fabric", "dma_buf"]


class ExportedMemory:
    """A handle of memory, and where in that memory the exported bytes are. Yours to close; also a context manager.

    A file descriptor keeps the memory alive: what the tensor gives back comes back to the device only when the
    descriptor, and whatever another process made of it, is gone too. It is not inherited by children; `detach` gives
    the bare number to code that closes it by itself.

    Attributes
    ----------
    kind : str
        ``"posix_fd"``, ``"fabric"`` or ``"dma_buf"``.
    address, nbytes : int
        The exported bytes in this process.
    offset : int
        Where they begin in the memory behind the handle.
    handle_nbytes : int
        Bytes of all the memory behind the handle: what an importer has to map.
    allocation_id : int
        The allocation's, unique in this process; 0 for a dma-buf, which may span several.
    """

    def __init__(
        self,
        shared: int | bytes,
        *,
        kind: ExportKind,
        address: int,
        nbytes: int,
        offset: int,
        handle_nbytes: int,
        allocation_id: int,
    ) -> None:
        self._shared: int | bytes | None = shared
        self.kind: Final = kind
        self.address: Final = address
        self.nbytes: Final = nbytes
        self.offset: Final = offset
        self.handle_nbytes: Final = handle_nbytes
        self.allocation_id: Final = allocation_id

    def __repr__(self) -> str:
        state = "closed" if self._shared is None else "open"
        return f"<ExportedMemory {self.kind} of {self.nbytes} bytes at {self.address:#x}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if isinstance(self._shared, int):
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    @property
    def handle(self) -> int | bytes:
        """The descriptor, or the bytes of a fabric handle. Still this object's to close."""
        if self._shared is None:
            raise StateError(f"{self!r} has no handle any more", state="closed", event="handle")
        return self._shared

    def fileno(self) -> int:
        """The descriptor, as ``open`` files give it."""
        if isinstance(handle := self.handle, int):
            return handle
        raise StateError(f"{self!r} is no descriptor; take `handle`", state="open", event="fileno")

    def detach(self) -> int | bytes:
        """Give the handle away: whoever calls this closes it."""
        handle, self._shared = self.handle, None
        return handle

    def close(self) -> None:
        """Close the descriptor. The second time does nothing; a fabric handle has nothing to close."""
        shared, self._shared = self._shared, None
        if isinstance(shared, int):
            os.close(shared)
