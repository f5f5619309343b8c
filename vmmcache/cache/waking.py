"""Getting the memory of a cache back (S11): the same, at the same addresses, zeroed; then connectors register again."""

from __future__ import annotations

from vmmcache.cache.agreement import all_or_none, answers_of
from vmmcache.cache.core import Core
from vmmcache.cache.noting import noting
from vmmcache.errors import VmmCacheError
from vmmcache.memory.undo import UndoStack

__all__ = ["wake_alone", "wake_up"]


def wake_up(core: Core) -> None:
    """Wake, on all ranks or on none: where one cannot, all are asleep still. See `KVCacheManager.wake`."""
    error: VmmCacheError | None = None
    with UndoStack() as undo:
        try:
            _get_back(core, undo)
        except VmmCacheError as refusal:
            error = refusal
        all_or_none(answers_of(core.ranks, "wake", error), "wake", error)
        _hand_out(core, undo)


def wake_alone(core: Core) -> None:
    """Wake without asking the other ranks. After an error it is asleep still."""
    with UndoStack() as undo:
        _get_back(core, undo)
        _hand_out(core, undo)


def _get_back(core: Core, undo: UndoStack) -> None:
    backing = core.path.backing
    if backing.state == "asleep":  # else an interrupt came right after it woke, and before it was undone
        backing.wake()
    undo.push(noting(backing.sleep))
    if core.registrations:
        undo.push(noting(core.registrations.release))
        core.registrations.restore(moved=not backing.addresses_stay)


def _hand_out(core: Core, undo: UndoStack) -> None:
    undo.callback(core.slots.set_counts, (0,) * len(core.asleep_counts))
    core.follow()
    core.asleep_counts = ()
    undo.commit()
