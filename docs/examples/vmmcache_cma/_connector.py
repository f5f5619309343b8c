"""A connector over Linux's cross-memory attach: one process copies from or to another's memory, by its addresses."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Final

from vmmcache import Card, ConnectorError, RegistrableSegment, RemoteMemory, Transfer, TransferConnector
from vmmcache.connectors.transfer import Operation
from vmmcache_cma import NEEDS

_libc: Final = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
_PR_SET_PTRACER: Final = 0x59616D61  # of linux/prctl.h
_ANYBODY: Final = ctypes.c_ulong(-1)


class _Span(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class CmaConnector(TransferConnector):
    """Peers are processes of this machine, of the same user."""

    name = "cma"
    needs = NEEDS

    def __init__(self, *, patience_s: float = 30.0) -> None:
        super().__init__(f"{os.getpid()}-{secrets.token_hex(4)}", patience_s)

    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        # Where the system lets only parents look into a process: let others as well. Elsewhere it knows no such call.
        if _libc.prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:
            raise self._refusal("prctl", ctypes.get_errno())
        yield from segments  # the kernel has no book of its own

    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        yield from segments

    def _metadata(self, parts: Sequence[RegistrableSegment] | None) -> bytes:
        return b""

    def _connect(self, card: Card) -> None:
        """The name says which process it is."""

    def _disconnect(self, agent: str) -> None:
        """There is no connection."""

    def _start(
        self, operation: Operation, remote: RemoteMemory, copies: Sequence[tuple[int, int, int]], message: bytes
    ) -> Transfer:
        call = "process_vm_writev" if operation == "WRITE" else "process_vm_readv"
        pid = int(remote.agent.partition("-")[0])
        transfer = _Copied(self, operation, remote)
        for local, far, nbytes in copies:
            here, there = _Span(local, nbytes), _Span(far, nbytes)
            copied = getattr(_libc, call)(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            if copied != nbytes:
                transfer.refusal = self._refusal(call, ctypes.get_errno() if copied < 0 else errno.EFAULT)
                break
        return transfer

    def _refusal(self, call: str, code: int) -> ConnectorError:
        name = errno.errorcode.get(code, "")
        return ConnectorError(f"{call}: {os.strerror(code)}", connector=self.name, call=call, code=code, name=name)


class _Copied(Transfer):
    """Bytes that the kernel has copied already, or not."""

    refusal: ConnectorError | None = None

    def _poll(self) -> bool:
        if self.refusal is not None:
            raise self.refusal
        return True

    def _finish(self) -> None:
        """There is nothing to give up."""
