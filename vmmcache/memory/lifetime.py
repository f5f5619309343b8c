"""What keeps a region alive: its tensor, then the views that outlive the tensor, then leases nobody gave back."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Final

from vmmcache.errors import StateError
from vmmcache.memory.dlpack import byte_capsule
from vmmcache.memory.region import Region
from vmmcache.memory.states import State

__all__ = ["Lifetime"]

_log = logging.getLogger(__name__)

_waiting: deque[Lifetime] = deque()
"""Those that could not be closed when their time came. Tried again whenever a tensor is made or goes."""


def _close_waiting() -> None:
    for _ in range(len(_waiting)):
        try:
            lifetime = _waiting.popleft()
        except IndexError:
            return  # another thread tries the rest
        lifetime.close_if_unused()


class Lifetime:
    """Closes a region when the last that needs it is gone.

    A tensor holds its Lifetime, and so does every capsule made by `capsule`; the Lifetime never holds the tensor.
    """

    def __init__(self, region: Region, leased: Callable[[], int]) -> None:
        self._region: Final = region
        self._leased: Final = leased
        self._pid: Final = os.getpid()
        self._abandoned = False
        # One token a view. Adding and discarding are atomic, and views die in any thread, also in the middle of a call.
        self._views: set[object] = set()
        _close_waiting()

    @property
    def views(self) -> int:
        """Live views: capsules, and storages of tensors made of them."""
        return len(self._views)

    def capsule(self, start: int, nbytes: int) -> object:
        """A DLPack capsule of a byte range, counted as a view until it and every tensor made of it are gone."""
        token = object()
        self._views.add(token)

        def gone() -> None:
            self._views.discard(token)
            self.close_if_unused()

        return byte_capsule(self._region.base + start, nbytes, self._region.driver.dlpack_device, gone)

    def abandon(self) -> None:
        """The tensor is gone, or the interpreter is about to be."""
        self._abandoned = True
        _close_waiting()
        if self._leased() and self._region.state is not State.CLOSED:
            _log.warning("%r was dropped while leased; its memory stays until the leases are released", self._region)
        self.close_if_unused()

    def close_if_unused(self) -> None:
        """Close the region if the tensor is gone and nothing else needs it."""
        if not self._abandoned or self._views or self._leased() or os.getpid() != self._pid:
            # In a forked child the memory is the parent's to give back.
            return
        with self._region.gate.enter("close"):
            if self._region.state is State.CLOSED and not self._region.owes:
                return  # without a call: it may have been closed long ago, and the device be out of order by now
            try:
                with self._region.gate.operation("close", committed=int):
                    self._region.close()
            except StateError as error:
                # A graph is being captured: nothing may be waited for, and nobody who could be told is there.
                _log.info("%r is closed later: %s", self._region, error)
                _waiting.append(self)
