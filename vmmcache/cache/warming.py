"""What an engine does before the size of its cache is decided, and the deciding."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from vmmcache.cache.core import Core
from vmmcache.cache.finalizing import Finalizer
from vmmcache.cache.managed import ManagedCache
from vmmcache.cache.report import SizingReport
from vmmcache.cache.states import Event, State
from vmmcache.cache.warmup import WarmupLog

__all__ = ["WarmingCache"]

_log: Final = logging.getLogger(__name__)


class WarmingCache(ManagedCache):
    """A cache that warms up."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._finalizer: Final = Finalizer(core)

    def ensure(self, slots: int | Sequence[int]) -> tuple[int, ...]:
        """Commit the slots that warm-up is about to use, up to what the ranks agreed that all can.

        Managers that share a device may each have an equal part of that.

        Parameters
        ----------
        slots : int or sequence of int
            For every pool group, or one number for each. What is there stays.

        Returns
        -------
        tuple of int
            Slots of each group that are there now; `vmmcache.wrap_slots` brings ids of dummy work into them.

        Raises
        ------
        ConfigError
            A number is wrong, or more than the capacity.
        StateError
            The size is decided already.
        OutOfDeviceMemory, DriverError
            The device refused. Everything is as it was.
        """
        with self._lock:
            self._next(Event.ENSURE)
            backing = self._core.path.backing
            wanted = tuple(map(max, backing.slots, backing.counts(slots)))
            allowed = tuple(map(max, backing.slots, map(min, wanted, self._core.allowance)))
            if allowed != wanted:
                _log.info("%r: %s slots asked for, %s are all that warm-up may have", self, wanted, allowed)
            try:
                backing.commit(allowed)
            finally:
                self._core.follow()
            return backing.slots

    def committable(self) -> list[int]:
        """What this rank could commit while warming up, for an engine that carries the numbers.

        `vmmcache.merge_measurements` of the lists of all ranks is for `ensure_bound`.
        """
        with self._lock:
            self._next(Event.COMMITTABLE)
            return self._core.committable()

    def ensure_bound(self, numbers: Sequence[int]) -> None:
        """Let `ensure` commit no more than the ranks agreed on.

        Raises
        ------
        ConfigError
            `numbers` is not what `vmmcache.merge_measurements` gave.
        """
        with self._lock:
            self._next(Event.BOUND)
            self._core.bind(numbers)

    @contextmanager
    def profile(self) -> Iterator[None]:
        """Watch a profiling run: the transient peak of it, and memory afterwards. May be left out."""
        with self._watched(Event.PROFILE, "profiled"):
            yield

    @contextmanager
    def warm_up(self) -> Iterator[WarmupLog]:
        """Watch warm-up. What is run in it should be what serving runs; the log is there to say what was.

        >>> from vmmcache import KVCacheManager
        >>> from vmmcache.planning import Attention, Buffer, CacheLayout
        >>> layout = CacheLayout(16, [Attention([Buffer("key", 4096), Buffer("value", 4096)], count=2)])
        >>> with KVCacheManager(layout, "host", MemoryBudget(nbytes=4 << 20)) as m:
        ...     with m.warm_up() as warm:
        ...         warm.ran("mixed_step", tokens=8192)
        ...     m.finalize().nbytes
        4194304
        """
        with self._watched(Event.WARM_UP, "warmed up"):
            yield self._core.log

    @contextmanager
    def _watched(self, event: Event, stage: str) -> Iterator[None]:
        with self._lock:
            self._next(event)
            self._core.path.reader.start_peak()
        try:
            yield
        finally:
            with self._lock:
                if self._state is State.WARMING:
                    self._core.shared.saw_peak(self._core.path.reader.transient_peak())
                    self._core.snapshot(stage)

    def finalize(self) -> SizingReport:
        """Measure what is left, agree on it, commit it, and register it.

        On the measured path each segment becomes one allocation, also where that is less than warm-up had (S9). What
        warm-up wrote is lost. Where memory disappears in between, it is measured again, `vmmcache.cache.finalizing`
        says how often.

        Raises
        ------
        StateError
            Requests of the warm-up are alive, or the size is decided already.
        PlanError
            What was declared does not fit into what is left, on this rank.
        RankError
            A rank is gone, or could not do its part.
        OutOfDeviceMemory, DriverError, ConnectorError
            Refused. After any error the manager is warming up as it was, and can be finalized again; where the device
            has less memory than before, so have the slots.
        """
        with self._lock:
            after = self._next(Event.FINALIZE)
            self._check_no_requests(Event.FINALIZE)
            self._report = self._finalizer.finalize()
            self._state = after
            _log.info("%r: %s slots committed", self, list(self.committed))
            return self._report

    def measure(self) -> list[int]:
        """What this rank can hold, for an engine that carries the numbers. Commits nothing.

        `vmmcache.merge_measurements` of the lists of all ranks is for `apply`. Errors are those of `finalize`.
        """
        with self._lock:
            self._next(Event.MEASURE)
            return self._finalizer.measure()

    def apply(self, numbers: Sequence[int]) -> SizingReport:
        """Commit and register what the ranks agreed on: the second half of `finalize`, with its errors.

        Where one rank raises, the engine has the others go back by `close`, or all of them `measure` again; only
        `finalize` with `ranks` does that by itself.
        """
        with self._lock:
            after = self._next(Event.APPLY)
            self._check_no_requests(Event.APPLY)
            self._report = self._finalizer.apply(numbers)
            self._state = after
            _log.info("%r: %s slots committed", self, list(self.committed))
            return self._report

    # ----------------------------------------------------------------------------------------------------------------

    def _check_no_requests(self, event: Event) -> None:
        self._core.check_no_requests(repr(self), self.state, event.value, "free those of the warm-up")
