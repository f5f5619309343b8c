"""Whose slots go when somebody needs them, and what is kept of their contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vmmcache.cache.block_rules import Ranges
from vmmcache.cache.mover import SlotMover
from vmmcache.cache.prefix import Histories, Prefix, PrefixChange
from vmmcache.cache.requests import CacheRequest
from vmmcache.cache.tables import chosen
from vmmcache.memory.ranges import Range

if TYPE_CHECKING:
    from vmmcache.cache.ledger import Ledger

__all__ = ["Backup", "evictable", "read_backup", "victims", "write_backup"]


class Backup(NamedTuple):
    """Copies of what a request's slots held. Scratch slots hold nothing that outlives a step."""

    own: list[tuple[int, Ranges, Any]]
    """Life cycle, its blocks, and the copy of them."""
    shared: list[tuple[int, Range, Any]]
    """The same for blocks of its prompt, in pieces that later are there or missing as a whole."""


def victims(
    ledger: Ledger, short: Sequence[int], doomed: Sequence[CacheRequest] = (), change: PrefixChange | None = None
) -> list[CacheRequest]:
    """Suspended requests that have to go so that `short` more slots of each group are free.

    The least recently suspended first, whole requests, but none that has nothing to give where slots are short. Those
    that are `doomed` go in any case, and count. `change` is what a member that comes in does to its prompt: blocks that
    it will need cannot be given by those who share them.
    """
    missing = list(short)
    left: dict[Prefix, Histories] = {}
    going: dict[int, CacheRequest] = {}

    def go(request: CacheRequest) -> None:
        going[request.number] = request
        for group, number in enumerate(request._held):
            missing[group] -= number
        prefix = request.prefix
        if prefix is not None:
            histories = left.get(prefix) or prefix._resident.copy()
            left[prefix] = histories
            before = prefix._by_group(prefix._needed(histories.shortest))
            histories.remove(request._history)
            after = prefix._by_group(prefix._needed(histories.shortest))
            for group, (more, less) in enumerate(zip(before, after, strict=True)):
                missing[group] -= more - less

    for request in doomed:
        go(request)
    for request in ledger.suspended.values():
        if max(missing) <= 0:
            break
        if request.number in going:
            continue
        if any(number > 0 < more for number, more in zip(missing, evictable(request, change), strict=True)):
            go(request)
    return list(going.values())


def evictable(request: CacheRequest, change: PrefixChange | None = None) -> list[int]:
    """Slots per group that a suspended request has, alone or with others, but with no active one, and none to come."""
    prefix = request.prefix
    if prefix is None:
        return request._held
    seen = prefix._by_group(prefix._needed(request._history))
    # A longer history needs fewer blocks in every life cycle: either all that it sees is active members' too, or all of
    # theirs is among what it sees.
    pinned = prefix._pinned if change is None or change._prefix is not prefix else change._pinned
    return [own + max(0, a - b) for own, a, b in zip(request._held, seen, pinned, strict=True)]


def read_backup(ledger: Ledger, request: CacheRequest) -> Backup:
    """Copy what a request's slots hold, also those of its prompt: nobody else may be there when it comes back."""
    mover = _mover(ledger)
    own, shared = [], []
    for number, (rule, table, kept, shown) in enumerate(
        zip(ledger.rules, request._tables, request._kept, request._shown, strict=True)
    ):
        if kept:
            own.append((number, kept, mover.read_slots(rule.group, chosen(table, kept))))
        shared += [
            (number, (start, stop), mover.read_slots(rule.group, table[start:stop]))
            for start, stop in _pieces(shown, rule.steady)
        ]
    return Backup(own, shared)


def write_backup(ledger: Ledger, request: CacheRequest, missing: Sequence[Ranges] | None) -> None:
    """Bring back what was copied, of the prompt only `missing` blocks: others may be in use by active members."""
    mover, backup = _mover(ledger), request._backup
    for number, kept, copy in backup.own:
        mover.write_slots(ledger.rules[number].group, chosen(request._tables[number], kept), copy)
    for number, (start, stop), copy in backup.shared:
        if missing is not None and any(low <= start and stop <= high for low, high in missing[number]):
            mover.write_slots(ledger.rules[number].group, request._tables[number][start:stop], copy)


def _pieces(shown: Ranges, steady: int | None) -> list[Range]:
    """Pieces that come and go as a whole: the blocks that never become stale, and each of the others by itself."""
    pieces = []
    for start, stop in shown:
        whole = stop if steady is None else max(start, min(stop, steady))
        if start < whole:
            pieces.append((start, whole))
        pieces += [(block, block + 1) for block in range(whole, stop)]
    return pieces


def _mover(ledger: Ledger) -> SlotMover:
    assert ledger.mover is not None, "who asks for a backup without a mover is refused"
    return ledger.mover
