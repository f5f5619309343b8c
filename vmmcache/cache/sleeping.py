"""Giving the memory of a whole cache back for a while, in the order that keeps everybody safe (S11, C5).

Every rank sees that nothing stands in the way, and only then does any go on. Connectors let go: no transfer is on its
way, peers know that their addresses are void, the library has deregistered. Contents of suspended requests go to the
host where the caller wants them. Then the memory goes, after the device has finished; the ranks hear whether all of
them sleep; and it is measured that the memory came back. An engine that has an allocator of its own suspends that
afterwards.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import Final, NamedTuple

from vmmcache.cache.agreement import all_or_none, answers_of
from vmmcache.cache.core import Core
from vmmcache.cache.noting import noting
from vmmcache.cache.rejoining import sleep_together
from vmmcache.cache.requests import RequestState
from vmmcache.cache.snapshots import Snapshot
from vmmcache.errors import StateError, VmmCacheError
from vmmcache.memory.undo import UndoStack
from vmmcache.units import format_bytes

__all__ = ["Slept", "fall_asleep"]

PATIENCE_S: Final = 5.0
"""How long a driver that keeps memory for a while is given to show that it came back."""
_STEP_S: Final = 0.1
_SLACK: Final = 8
"""Other processes use the device as well: what came back counts as all of it up to an eighth less."""

_BLIND: Final = ("configured", "cgroup", "MemAvailable")
"""Sources that do not see host memory of torch's which nobody has touched yet."""
_BY_TOUCH: Final = ("cgroup", "MemAvailable")
"""Sources that count host memory when it is touched: what nobody has used does not come back, and nothing is amiss."""

_log: Final = logging.getLogger(__name__)


class Slept(NamedTuple):
    """What going to sleep has given back."""

    released: int
    """Bytes that the cache held."""
    came_back: int | None
    """Bytes by which the device's free memory rose; less than `released` where others took some meanwhile. None where
    nobody can say: host memory of torch's, which counts nowhere before it is touched."""
    source: str
    """Who says how much is free."""
    suspended: int = 0
    """Requests that are suspended meanwhile."""
    lost: int = 0
    """Those of them whose contents this call has lost: all that had any, unless they were backed up."""


def fall_asleep(core: Core, who: str, *, backup: bool, revoke: bool) -> Slept:
    """Give all memory back. See `KVCacheManager.sleep`."""
    before, held = core.path.reader.snapshot("awake"), core.path.backing.physical_bytes
    going, suspended, lost = False, 0, 0
    error: VmmCacheError | None = None
    try:
        with ExitStack() as door, UndoStack() as undo:
            _clear_the_way(core, who, door, undo, backup=backup, revoke=revoke)
            going = True
            suspended, lost = _give_back(core, undo, revoke=revoke)
    except VmmCacheError as refusal:
        if not going:
            raise  # on all ranks, and all are as they were
        error = refusal
    sleep_together(core, error)
    return _checked(core, before, held)._replace(suspended=suspended, lost=lost)


def _clear_the_way(core: Core, who: str, door: ExitStack, undo: UndoStack, *, backup: bool, revoke: bool) -> None:
    """Let nothing stand in the way, here and on all ranks. Nothing is lost yet."""
    error: VmmCacheError | None = None
    try:
        if not core.asleep_counts:
            with core.slots.held():
                _check_suspended(core, who, revoke=revoke)
                # Nobody starts any more; whoever waits for transfers to end can still free.
                door.enter_context(core.slots.shut())
            undo.push(noting(core.registrations.restore))
            core.registrations.release()
            core.path.backing.check_leases(revoke=revoke)
            if backup:
                core.slots.evict_all(backup=True)  # loses nothing, and so may be for nothing
    except VmmCacheError as refusal:
        error = refusal
    all_or_none(answers_of(core.ranks, "sleep", error), "sleep", error)


def _give_back(core: Core, undo: UndoStack, *, revoke: bool) -> tuple[int, int]:
    """Give the memory back; say how many requests are suspended, and of how many this has lost the contents."""
    backing, counts = core.path.backing, tuple(group.slots for group in core.path.plan.groups)
    requests, lost = core.slots.requests, 0
    if not core.asleep_counts:
        # From here on slots are none, and what they held is copied or lost.
        undo.push(noting(core.follow))
        with core.slots.held():
            requests = core.slots.requests
            before_that = sum(request.lost for request in requests)
            core.slots.evict_all()
            lost = sum(request.lost for request in requests) - before_that
            core.slots.set_counts((0,) * len(counts))
    try:
        backing.sleep(revoke=revoke)
    finally:
        # Also where the driver refused to take something back: the rest is gone.
        if backing.state == "asleep":
            core.asleep_counts = core.asleep_counts or counts
            undo.commit()
    return len(requests), lost


def _check_suspended(core: Core, who: str, *, revoke: bool) -> None:
    active = [request for request in core.slots.requests if request.state is RequestState.ACTIVE]
    if active and not revoke:
        raise StateError(
            f"{who} has {len(active)} requests that are not suspended; suspend or free them, or pass revoke=True to "
            "have them suspended",
            state="ready",
            event="sleep",
        )
    for request in active:
        core.slots.suspend(request)


def _checked(core: Core, before: Snapshot, held: int) -> Slept:
    """See that the memory came back: some runtimes take their time, and some keep it."""
    reader = core.path.reader
    if not core.path.backing.addresses_stay:
        reader.settle()  # torch keeps what was freed for itself
        if before.source in _BLIND:
            return Slept(held, None, before.source)
    deadline = time.monotonic() + (PATIENCE_S if core.path.keeps_memory else 0.0)
    while True:
        now = reader.snapshot("asleep")
        came_back = now.free - before.free
        if came_back >= held - held // _SLACK:
            break
        if time.monotonic() >= deadline:
            _log.log(
                logging.INFO if now.source in _BY_TOUCH else logging.WARNING,
                "%s gave back %s and %s more are free (%s says so): others took the rest, or the driver keeps it",
                core.path.device,
                format_bytes(held),
                format_bytes(max(0, came_back)),
                now.source,
            )
            break
        time.sleep(_STEP_S)
    return Slept(held, max(0, came_back), now.source)
