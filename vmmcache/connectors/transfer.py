"""A transfer that was started, and what becomes of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from vmmcache.connectors.cards import RemoteMemory
from vmmcache.errors import ConnectorError, StateError

if TYPE_CHECKING:
    from vmmcache.connectors.transfers import TransferConnector

__all__ = ["NAP_S", "SPIN_S", "Copy", "Operation", "Transfer"]

Operation = Literal["WRITE", "READ"]

SPIN_S: Final = 0.002
"""So long a waiter looks all the time; a transfer that takes longer is looked at every `NAP_S`."""
NAP_S: Final = 0.00005


class Copy(NamedTuple):
    """Bytes to move between two addresses; see `Registration.address` and `RemoteMemory.address`."""

    local: int
    remote: int
    nbytes: int


class Transfer(ABC):
    """A transfer that was started. What a library adds stands in `_poll` and `_finish` of a subclass."""

    def __init__(self, connector: TransferConnector, operation: Operation, remote: RemoteMemory) -> None:
        self.operation: Final = operation
        self.remote: Final = remote
        self._connector: Final = connector
        self._error: ConnectorError | None = None
        self._ended = False

    def __repr__(self) -> str:
        state = "running" if not self._ended else f"failed: {self._error}" if self._error else "done"
        return f"<Transfer {self.operation} {self.remote.agent}, {state}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        with self._connector.lock:
            if not self._ended:
                self._connector._look(self)
            return self._ended

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all bytes are where they should be.

        Raises
        ------
        ConnectorError
            It failed; the peer is dropped and has to be connected anew. Some of the bytes may have been moved.
        StateError
            It has not ended after `timeout_s`; it goes on.
        """
        start = now = time.monotonic()
        while not self.done:
            if timeout_s is not None and now - start >= timeout_s:
                raise StateError(
                    f"{self!r} has not ended within {timeout_s:g} s; wait longer, or disconnect the peer",
                    state="running",
                    event="wait",
                )
            self._pause(now - start)
            now = time.monotonic()
        if self._error is not None:
            raise self._error

    # What a library adds --------------------------------------------------------------------------------------------

    @abstractmethod
    def _poll(self) -> bool:
        """Whether it is done; ConnectorError where it failed. Called under the connector's lock."""

    def _pause(self, waited_s: float) -> None:
        """Let a little time pass until the next `_poll`. Without the connector's lock."""
        time.sleep(0 if waited_s < SPIN_S else NAP_S)

    @abstractmethod
    def _finish(self) -> None:
        """Give up what the library holds for it. Called once, when it has ended."""
