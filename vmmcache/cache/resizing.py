"""Other slot counts for a cache that is in use: who is in the way goes, or moves down."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from vmmcache.cache.eviction import victims
from vmmcache.cache.free_list import SlotArray
from vmmcache.cache.prefix import Prefix
from vmmcache.cache.requests import CacheRequest, RequestState
from vmmcache.cache.tables import chosen
from vmmcache.errors import StateError

if TYPE_CHECKING:
    from vmmcache.cache.ledger import Ledger

__all__ = ["resize"]


def resize(ledger: Ledger, counts: Sequence[int]) -> None:
    """Have `counts` slots per group; see `vmmcache.cache.slots.Slots.set_counts`."""
    pools = ledger.pools
    if all(pool.high <= count for pool, count in zip(pools, counts, strict=True)):
        # No slot beyond was ever handed out, so nobody can be in the way.
        _change(ledger, counts, [{}] * ledger.groups)
        return
    _refuse_active(ledger, counts)
    with ledger:
        _make_way(ledger, counts)


def _make_way(ledger: Ledger, counts: Sequence[int]) -> None:
    pools = ledger.pools
    reserved = pools[0].reserved
    short = [pool.usable - pool.free - max(0, count - reserved) for pool, count in zip(pools, counts, strict=True)]
    doomed = [] if ledger.mover is not None else [r for r in ledger.suspended.values() if _beyond(ledger, r, counts)]
    ledger.evict(victims(ledger, short, doomed))

    moves = []
    for group, (pool, count) in enumerate(zip(pools, counts, strict=True)):
        slots = {slot for _, table in _tables(ledger, group) for slot in table if slot >= count}
        moves.append(dict(zip(sorted(slots), pool.below(count, len(slots)), strict=True)))
    if ledger.mover is not None:
        for group, move in enumerate(moves):
            if move:
                ledger.mover.move_slots(group, list(move.items()))
    _change(ledger, counts, moves)


def _change(ledger: Ledger, counts: Sequence[int], moves: Sequence[dict[int, int]]) -> None:
    """Have the slots of `moves` where they are now, and other counts; wherever it is interrupted, to the end."""
    tables = [
        (put, array("i", [move.get(slot, slot) for slot in table]))
        for group, move in enumerate(moves)
        if move
        for put, table in _tables(ledger, group)
    ]

    def change() -> None:
        for put, table in tables:
            put(table)
        for pool, count, move in zip(ledger.pools, counts, moves, strict=True):
            pool.resize(count, move.values())

    done = False
    try:
        change()
        done = True
    finally:
        if not done:
            change()


def _refuse_active(ledger: Ledger, counts: Sequence[int]) -> None:
    """Raise StateError where active requests have slots that are to go."""
    slots = set()
    requests = 0
    for request in ledger.requests.values():
        if request._state is RequestState.ACTIVE:
            beyond = _beyond(ledger, request, counts)
            slots |= beyond
            requests += bool(beyond)
    if slots:
        raise StateError(
            f"{len(slots)} slots of {requests} active requests lie beyond the new counts {list(counts)}; suspend or"
            " free these requests first",
            state="active",
            event="set_counts",
        )


def _beyond(ledger: Ledger, request: CacheRequest, counts: Sequence[int]) -> set[tuple[int, int]]:
    """Slots of a request that are to go, as (group, slot), with those of its prompt that it needs."""
    prefix = request.prefix
    needed = None if prefix is None else prefix._needed(request._history)
    found = set()
    for number, rule in enumerate(ledger.rules):
        tables = [request._tables[number], *request._scratch[number : number + 1]]
        if prefix is not None and needed is not None:
            # A request that is shorter than its prompt needs more of it than its table shows.
            tables.append(chosen(prefix._tables[number], needed[number]))
        found |= {(rule.group, slot) for table in tables for slot in table if slot >= counts[rule.group]}
    return found


def _tables(ledger: Ledger, group: int) -> Iterator[tuple[Callable[[SlotArray], object], SlotArray]]:
    """Every array that holds slots of a group, and how to put another in its place."""
    prefixes: set[Prefix] = set()
    lists: list[list[SlotArray]] = []
    for request in ledger.requests.values():
        lists += [request._tables, request._scratch]
        if request.prefix is not None:
            prefixes.add(request.prefix)
    lists += [prefix._tables for prefix in prefixes]
    for arrays in lists:
        for number, slots in enumerate(arrays):
            if ledger.rules[number].group == group:
                yield _putter(arrays, number), slots


def _putter(arrays: list[SlotArray], number: int) -> Callable[[SlotArray], None]:
    def put(slots: SlotArray) -> None:
        arrays[number] = slots

    return put
