"""Who may work on a region, and whether the device may still be at work on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from vmmcache.driver import VmmDriver
from vmmcache.errors import VmmCacheError
from vmmcache.memory.region._verbs import Verbs
from vmmcache.metrics import Meter

__all__ = ["Gate"]


class Gate:
    """One for each region. Everything that looks at the region, or changes it, goes through."""

    def __init__(self, driver: VmmDriver, verbs: Verbs, meter: Meter) -> None:
        self.lock: Final = threading.RLock()
        self.busy_with: tuple[str, int] | None = None
        """The operation that is being done, and when it began by the monotonic clock, in nanoseconds. To be looked at
        without the lock, which is held as long as it lasts."""
        self._driver = driver
        self._verbs = verbs
        self._meter = meter
        self._operating = self._idle = False

    def enter(self, event: str) -> AbstractContextManager[object]:
        """For everything that looks or changes: in the process of the driver, one thread at a time."""
        # Before the lock: in a forked child it may be held for ever, by a thread that is not there.
        self._driver.check_process(event)
        return self.lock

    @contextmanager
    def operation(self, event: str, committed: Callable[[], int] | None = None) -> Iterator[None]:
        """For everything that calls the driver: as `enter`, on the device, and not while a graph is captured.

        `committed` says how many bytes are visible at the end; without it, as many as before. For the metrics.
        """
        with self.enter(event):
            self._driver.check_not_capturing(event)
            with self._driver.current():
                self._idle = False
                self._operating = True
                begun = time.monotonic_ns()
                self.busy_with = (event, begun)
                try:
                    yield
                except VmmCacheError as error:
                    self._meter.failed(event, error)
                    raise
                finally:
                    self._idle = self._operating = False
                    self.busy_with = None
                    self._meter.finish(event, time.monotonic_ns() - begun, committed and committed())

    def wait(self) -> None:
        """Wait for the device, once in an operation. What is unmapped afterwards is not in use any more (I8)."""
        if not self._idle:
            self._verbs.synchronise()
            self._idle = self._operating

    def busy(self) -> None:
        """The operation gave the device work itself: the next `wait` waits."""
        self._idle = False
