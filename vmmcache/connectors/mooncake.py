"""Mooncake's transfer engine: registered memory of vmmcache, transfers between engines.

The library is imported when a connector is opened. It finds out by itself where a peer's memory is registered, so a
card needs none of its metadata. Its calls wait until the bytes have been moved; here they do so in threads.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from vmmcache.connectors.cards import Card, RemoteMemory
from vmmcache.connectors.mooncake_plugin import NEEDS
from vmmcache.connectors.needs import ConnectorNeeds
from vmmcache.connectors.transfer import Operation, Transfer
from vmmcache.connectors.transfers import TransferConnector
from vmmcache.errors import ConfigError, ConnectorError, ConnectorUnavailable
from vmmcache.memory.descriptors import RegistrableSegment

__all__ = ["NEEDS", "MooncakeConnector", "load"]

_CURE: Final = (
    "Install mooncake-transfer-engine, or mooncake-transfer-engine-non-cuda where there is no GPU, for example with "
    "`pip install 'vmmcache[mooncake]'`"
)
_CODES: Final = {
    -1: "ERR_INVALID_ARGUMENT",
    -3: "ERR_ADDRESS_NOT_REGISTERED",
    -7: "ERR_ADDRESS_OVERLAPPED",
    -202: "ERR_CONTEXT",
}
"""The codes of its C++ side that its Python calls have been seen to return."""
_GLANCE_S: Final = 0.005
"""How often a waiter looks whether its own time is over."""
_WITHOUT_CUDA: Final = "mooncake-transfer-engine-non-cuda"


class MooncakeConnector(TransferConnector):
    """A transfer engine of Mooncake.

    Parameters
    ----------
    host : str
        The address by which peers reach this process.
    protocol : str
        ``"tcp"`` or ``"rdma"``, or another that the installed build has.
    device : str
        Names of RDMA devices, with commas; empty for all, and for TCP.
    metadata : str
        ``"P2PHANDSHAKE"``: engines ask one another. Else the address of a metadata server.
    patience_s : float
        How long `quiesce` waits for transfers of this side.
    threads : int
        How many transfers go on at the same time.

    Raises
    ------
    ConfigError
        An option is wrong.
    ConnectorUnavailable
        Mooncake is not installed or cannot be loaded.
    ConnectorError
        Mooncake could not be started with these options.
    """

    name = "mooncake"

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        protocol: str = "tcp",
        device: str = "",
        metadata: str = "P2PHANDSHAKE",
        patience_s: float = 30.0,
        threads: int = 4,
    ) -> None:
        for field, value in (("host", host), ("protocol", protocol), ("metadata", metadata)):
            if type(value) is not str or not value:
                raise ConfigError(field, value, "must be text")
        if type(threads) is not int or threads < 1:
            raise ConfigError("threads", threads, "must be a number of at least 1")
        engine = load()()
        if code := engine.initialize(host, metadata, protocol, device):
            raise ConnectorError(
                f"initialize({host!r}, {metadata!r}, {protocol!r}, {device!r}) gave {code}",
                connector=self.name,
                call="initialize",
                code=code,
                name=_CODES.get(code, ""),
            )
        super().__init__(f"{host}:{engine.get_rpc_port()}", patience_s)
        self.needs = ConnectorNeeds(one_device=True, memory=_kinds())
        self._engine: Any = engine
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="vmmcache-mooncake")

    # Registering ----------------------------------------------------------------------------------------------------

    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in segments:
            self._judge("register_memory", self._engine.register_memory(segment.base, segment.nbytes), segment)
            yield segment

    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in segments:
            self._judge("unregister_memory", self._engine.unregister_memory(segment.base), segment)
            yield segment

    def _close(self) -> None:
        super()._close()
        self._threads.shutdown()
        self._engine = None  # the library has no other way to end it

    # Peers and transfers --------------------------------------------------------------------------------------------

    def _metadata(self, parts: Sequence[RegistrableSegment] | None) -> bytes:
        return b""

    def _connect(self, card: Card) -> None:
        """Mooncake connects when the first transfer begins."""

    def _disconnect(self, agent: str) -> None:
        """Mooncake forgets a peer that does not answer by itself."""

    def _start(
        self, operation: Operation, remote: RemoteMemory, copies: Sequence[tuple[int, int, int]], message: bytes
    ) -> Transfer:
        if message:
            raise ConfigError("message", message, "Mooncake gives peers no messages; use the engine's own channel")
        call = f"batch_transfer_sync_{operation.lower()}"
        local, far, nbytes = (list(each) for each in zip(*copies, strict=True))
        future = self._threads.submit(getattr(self._engine, call), remote.agent, local, far, nbytes)
        return _MooncakeTransfer(self, operation, remote, call, future)

    def _judge(self, call: str, code: int, segment: RegistrableSegment) -> None:
        if code:
            name = _CODES.get(code, "")
            raise ConnectorError(
                f"{call} of {segment.nbytes} bytes at {segment.base:#x} gave {code} {name}".rstrip(),
                connector=self.name,
                call=call,
                code=code,
                name=name,
            )


class _MooncakeTransfer(Transfer):
    """A call of Mooncake that waits in a thread."""

    def __init__(
        self, connector: MooncakeConnector, operation: Operation, remote: RemoteMemory, call: str, future: Future[int]
    ) -> None:
        super().__init__(connector, operation, remote)
        self._call = call
        self._future = future

    def _poll(self) -> bool:
        if not self._future.done():
            return False
        if code := self._future.result():
            raise ConnectorError(
                f"{self.operation} to {self.remote.agent} gave {code} {_CODES.get(code, '')}".rstrip(),
                connector="mooncake",
                call=self._call,
                code=code,
                name=_CODES.get(code, ""),
            )
        return True

    def _pause(self, waited_s: float) -> None:
        # Asleep until the thread is done: whoever polls instead takes the interpreter away from it.
        wait((self._future,), _GLANCE_S)

    def _finish(self) -> None:
        """The library holds nothing for a call that has returned."""


def _kinds() -> frozenset[str]:
    """What the installed build registers."""
    with contextlib.suppress(PackageNotFoundError):
        version(_WITHOUT_CUDA)
        return frozenset({"DRAM"})
    return NEEDS.memory


def load() -> Any:
    """Mooncake's class of engines."""
    try:
        return importlib.import_module("mooncake.engine").TransferEngine
    except ImportError as error:
        cure = _CURE
        if "libibverbs" in str(error):
            cure = "Install your distribution's libibverbs1 (on Debian with --no-install-recommends)"
        raise ConnectorUnavailable(f"Mooncake cannot be imported: {error}", cure=cure, connector="mooncake") from error
