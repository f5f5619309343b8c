"""What one region has done: counted while it works, shown as a whole when an operation ends.

Theory of operation
-------------------
A region's operations come one after the other, under its lock. Meanwhile its `Meter` takes notes: names of the driver's
calls at the end of a list, durations at the end of another, bytes as sums. Nobody reads them. When the operation ends,
`Meter.finish` makes a `Shown`: those two lists, how much of each counts, and the sums. Storing it is one assignment.
What a `Shown` speaks of never changes: lists only grow behind what counts, and all else is replaced, not changed.

A snapshot reads the `Shown` of every meter twice. If each is the same object both times, then at the moment between the
two all of them held at once; otherwise it reads again. So writers take no lock, allocate nothing that stays but a name
a call, and wait for nobody; and a reader sees every operation as a whole or not at all, over all regions together. Of
memory that moves from one tensor to another it never sees the second half without the first. It waits for no operation
either: also while a device hangs it sees what there was before.

Lists are added up when they are long, once in some hundred calls. When a region is closed and nothing of it is left,
its meter adds what it counted to the sums of its device, and is forgotten.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from vmmcache.metrics._sums import Sums

__all__ = ["Meter", "Shown", "collect", "forget", "on_change"]

_MANY: Final = 2048
"""Notes that are added up together."""

on_change: Final[list[Callable[[], object]]] = []
"""Called after every change, while the region is still locked: has to be quick, and may not raise."""

_live: Final[dict[int, Meter]] = {}
_past: Final[dict[str, Sums]] = {}
"""By device, what closed regions have done."""
_versions: Final = [0]
"""Raised whenever `_live` or `_past` changes."""
# Re-entrant: what is dropped while it is held may close a region, whose meter is forgotten then.
_lock = threading.RLock()


class Shown(NamedTuple):
    """One region between two operations."""

    sums: Sums
    journal: list[str]
    calls: int
    """Names of the journal that count, beyond what is in the sums."""
    operations: list[str]
    durations: list[int]
    """Of operations, one each, in nanoseconds less one."""
    times: int
    """Durations that count."""
    physical: int
    reserved: int
    committed: int
    generation: int

    def total(self) -> Sums:
        """All that the region has done."""
        calls, times = self.calls, self.times
        return self.sums.plus(self.journal[:calls], self.operations[:times], self.durations[:times], self.generation)


class Meter:
    """The notes of one region. Its methods are called under the region's lock, but for `leases`.

    Attributes
    ----------
    did : callable
        Note a call of the driver that succeeded, by the verb's name.
    physical, reserved : int
        Bytes of allocations, and of addresses.
    generation : int
        How often visible memory went away.
    leased : tuple of int
        How many leases there are. A new object each time.
    """

    __slots__ = (
        *("_closed", "_committed", "_durations", "_journal", "_operations", "_sums"),
        *("device", "did", "fds", "generation", "leased", "physical", "reserved", "shown"),
    )

    def __init__(self, device: str, fds_per_allocation: int) -> None:
        self.device: Final = device
        self.fds: Final = fds_per_allocation
        self.physical = self.reserved = self.generation = self._committed = 0
        self.leased = (0,)
        self._closed = False
        self._begin(Sums())

    def _begin(self, sums: Sums) -> None:
        self._sums = sums
        self._journal: list[str] = []
        self._operations: list[str] = []
        self._durations: list[int] = []
        self.did: Callable[[str], object] = self._journal.append
        self._show()

    def _show(self) -> None:
        journal, durations = self._journal, self._durations
        # A plain tuple, which takes a third of the time; it becomes a Shown when somebody looks.
        self.shown = (
            self._sums,
            journal,
            len(journal),
            self._operations,
            durations,
            len(durations),
            self.physical,
            self.reserved,
            self._committed,
            self.generation,
        )
        if on_change:
            for listener in on_change:
                listener()

    def opened(self) -> None:
        """The region has its addresses."""
        self._show()
        with _lock:
            _live[id(self)] = self
            _past.setdefault(self.device, Sums())
            _versions[0] += 1

    def closed(self) -> None:
        """The region wants nothing any more. What the driver refuses to take back keeps the meter here."""
        self._closed = True

    @property
    def is_closed(self) -> bool:
        """Whether the region wants nothing any more."""
        return self._closed

    def waited(self, nanoseconds: int) -> None:
        """Note that the device was waited for, and how long."""
        self.did("synchronise")
        self._operations.append("wait")
        self._durations.append(nanoseconds - 1)

    def finish(self, operation: str, nanoseconds: int, committed: int | None) -> None:
        """Show what an operation did. `committed`: bytes that are visible now; None where that has not changed."""
        self._operations.append(operation)
        self._durations.append(nanoseconds - 1)
        if committed is not None:
            self._committed = committed
        if len(self._journal) + len(self._durations) > _MANY:
            self._begin(self._sums.plus(self._journal, self._operations, self._durations, 0))
        else:
            self._show()
        if self._closed and not (self.reserved or self.physical):
            self._retire()

    def show(self, committed: int) -> None:
        """So many bytes are visible from now on, without an operation of ours."""
        self._committed = committed
        self._show()

    def failed(self, operation: str, error: BaseException) -> None:
        """The operation ends with an error; shown in a moment."""
        self._sums = self._sums.with_error(time.time(), operation, f"{type(error).__name__}: {error}")

    def leases(self, number: int) -> None:
        """There are so many leases. Under a lock of the caller's."""
        self.leased = (number,)
        for listener in on_change:
            listener()

    def _retire(self) -> None:
        with _lock:
            _live.pop(id(self), None)
            _past[self.device] = _past.setdefault(self.device, Sums()).merged(Shown(*self.shown).total())
            self._begin(Sums(generations=-self.generation))
            _versions[0] += 1


def collect() -> tuple[Mapping[str, Sums], list[tuple[Meter, Shown, int]]]:
    """Sums of what is past by device; every live meter, what it shows, how many leases. All of one moment."""
    while True:
        with _lock:
            version, past, meters = _versions[0], dict(_past), list(_live.values())
            first = [(meter.shown, meter.leased) for meter in meters]
            second = [(meter.shown, meter.leased) for meter in meters]
            same = all(a[0] is b[0] and a[1] is b[1] for a, b in zip(first, second, strict=True))
            if same and version == _versions[0]:
                found = zip(meters, first, strict=True)
                return past, [(meter, Shown(*shown), leases) for meter, (shown, (leases,)) in found]


def forget() -> None:
    """Count from zero what only grows."""
    with _lock:
        for device in _past:
            _past[device] = Sums()
        for meter in _live.values():
            meter._begin(Shown(*meter.shown).total().forgotten(meter.generation))
        _versions[0] += 1


def _after_fork() -> None:
    """A forked child has nothing: memory is its parent's, and the lock may be held by a thread that is not there."""
    global _lock
    _lock = threading.RLock()
    _live.clear()
    _past.clear()
    on_change.clear()


os.register_at_fork(after_in_child=_after_fork)
