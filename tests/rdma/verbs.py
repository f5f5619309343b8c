"""verbs.c through ctypes: one RDMA device with two of its queue pairs connected to each other."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Final

__all__ = ["Link", "Registered", "VerbsError"]


class VerbsError(OSError):
    """A verb failed."""


class Registered:
    """A memory region of a NIC."""

    def __init__(self, library: ctypes.CDLL, region: int, address: int, nbytes: int) -> None:
        self._library = library
        self._region: int | None = region
        self.address: Final = address
        self.nbytes: Final = nbytes
        self.key: Final[int] = library.key_of(region)
        self.local_key: Final[int] = library.local_key_of(region)

    def deregister(self) -> None:
        """Let go; the second time does nothing."""
        region, self._region = self._region, None
        if region is not None and (failed := self._library.link_deregister(region)):
            raise VerbsError(failed, f"ibv_dereg_mr: {os.strerror(failed)}")


class Link:
    """Opens the first RDMA device.

    Parameters
    ----------
    library : Path
        verbs.c, compiled.
    gid_index : int
        Which address of the port; 1 is RoCE v2 over IPv4 on soft-RoCE.
    """

    def __init__(self, library: Path, gid_index: int = 1) -> None:
        self._library: Final = library_at(library)
        why = c_int()
        self._link: Final = self._library.link_open(gid_index, ctypes.byref(why))
        if not self._link:
            raise VerbsError(why.value, f"no RDMA device could be opened: {os.strerror(why.value)}")

    def register(self, address: int, nbytes: int) -> Registered:
        """ibv_reg_mr for local and remote access."""
        why = c_int()
        region = self._library.link_register(self._link, address, nbytes, ctypes.byref(why))
        if not region:
            raise VerbsError(why.value, f"ibv_reg_mr of {nbytes} bytes at {address:#x}: {os.strerror(why.value)}")
        return Registered(self._library, region, address, nbytes)

    def write(self, source: Registered, target: Registered) -> int:
        """RDMA WRITE of the whole of `source` to the start of `target`: the completion's status, 0 for success."""
        arguments = (source.address, source.local_key, target.address, target.key, source.nbytes)
        status = int(self._library.link_write(self._link, *arguments))
        if status < 0:
            raise VerbsError(-status, f"ibv_post_send: {os.strerror(-status)}")
        if status:
            self._connect()
        return status

    def _connect(self) -> None:
        if failed := self._library.link_connect(self._link):
            raise VerbsError(failed, f"queue pairs could not be connected again: {os.strerror(failed)}")

    def close(self) -> None:
        """Give the device back."""
        self._library.link_close(self._link)


def library_at(path: Path) -> ctypes.CDLL:
    """Load the library, and say what its functions take."""
    library = ctypes.CDLL(str(path))
    signatures = {
        "link_open": ([c_int, c_void_p], c_void_p),
        "link_connect": ([c_void_p], c_int),
        "link_close": ([c_void_p], None),
        "link_register": ([c_void_p, c_uint64, c_uint64, c_void_p], c_void_p),
        "link_deregister": ([c_void_p], c_int),
        "key_of": ([c_void_p], c_uint32),
        "local_key_of": ([c_void_p], c_uint32),
        "link_write": ([c_void_p, c_uint64, c_uint32, c_uint64, c_uint32, c_uint32], c_int),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library
