"""The device that HIP works on in this thread: ours while we call, the engine's again afterwards.

hipMemCreate of ROCm 7 and newer allocates on the current device, whatever the properties say (clr source).
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from vmmcache import DriverError
from vmmcache_hip._api import Api

__all__ = ["CurrentDevice"]

_log = logging.getLogger(__name__)


class CurrentDevice:
    """A re-entrant context manager: current in this thread from the outermost entry to the outermost exit."""

    def __init__(self, api: Api, index: int) -> None:
        self._api = api
        self._index = index
        self._local = threading.local()

    def __enter__(self) -> Self:
        depth = getattr(self._local, "depth", 0)
        if not depth:
            self._local.before = self._api.call("hipGetDevice")
            if self._local.before != self._index:
                self._api.call("hipSetDevice", self._index)
        self._local.depth = depth + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._local.depth -= 1
        if not self._local.depth and self._local.before != self._index:
            try:
                self._api.call("hipSetDevice", self._local.before)
            except DriverError as refusal:
                # What the caller asked for is done, or has failed by an error of its own; raising would deny either.
                # As text: a record that is kept must not keep the error's frames, and in them the driver.
                thread = threading.get_ident()
                _log.warning("device %d stays current in thread %d: %s", self._index, thread, str(refusal))
