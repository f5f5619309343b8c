"""The primary context of one device: retained once, current only while we call, never a private one.

A thread of the engine's may have no context, or another device's; it has the same afterwards. A private context would
see memory that the engine's kernels and the connectors do not (vLLM #51377: it breaks NIXL's registration).
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Self

from vmmcache import DriverError
from vmmcache_cuda._api import Api

__all__ = ["PrimaryContext"]

_log = logging.getLogger(__name__)


class PrimaryContext:
    """A re-entrant context manager: current in this thread from the outermost entry to the outermost exit."""

    def __init__(self, api: Api, device: Any) -> None:
        self._api = api
        self._device = device
        self._context = api.call("cuDevicePrimaryCtxRetain", device)
        self._depth = threading.local()

    def __enter__(self) -> Self:
        depth = getattr(self._depth, "value", 0)
        if not depth:
            self._api.call("cuCtxPushCurrent", self._context)
        self._depth.value = depth + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth.value -= 1
        if not self._depth.value:
            try:
                self._api.call("cuCtxPopCurrent")
            except DriverError as refusal:
                # What the caller asked for is done, or has failed by an error of its own; raising would deny either.
                # As text: a record that is kept must not keep the error's frames, and in them the driver.
                thread = threading.get_ident()
                _log.warning("a context stays on the stack of thread %d: %s", thread, str(refusal))

    def release(self) -> None:
        """Give the context back, when its driver is gone."""
        try:
            self._api.call("cuDevicePrimaryCtxRelease", self._device)
        except DriverError as refusal:
            _log.warning("the primary context could not be given back: %s", str(refusal))
