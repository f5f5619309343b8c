"""Who may work on a region, and whether the device may still be at work on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from vmmcache.driver import VmmDriver

__all__ = ["Gate"]


class Gate:
    """One for each region. Everything that looks at the region, or changes it, goes through."""

    def __init__(self, driver: VmmDriver) -> None:
        self.lock: Final = threading.RLock()
        self._driver = driver
        self._operating = self._idle = False

    @contextmanager
    def enter(self, event: str) -> Iterator[None]:
        """For everything that looks or changes: in the process of the driver, one thread at a time."""
        # Before the lock: in a forked child it may be held for ever, by a thread that is not there.
        self._driver.check_process(event)
        with self.lock:
            yield

    @contextmanager
    def operation(self, event: str) -> Iterator[None]:
        """For everything that calls the driver: as `enter`, on the device, and not while a graph is captured."""
        with self.enter(event):
            self._driver.check_not_capturing(event)
            with self._driver.current():
                self._idle = False
                self._operating = True
                try:
                    yield
                finally:
                    self._idle = self._operating = False

    def wait(self) -> None:
        """Wait for the device, once in an operation. What is unmapped afterwards is not in use any more (I8)."""
        if not self._idle:
            self._driver.synchronise()
            self._idle = self._operating

    def busy(self) -> None:
        """The operation gave the device work itself: the next `wait` waits."""
        self._idle = False
