"""Books of slots after an interrupt, counted anew from what is there whatever was going on.

What is there: the state, the lengths, the block tables of requests and prompts, and which blocks these are said to
have. Everything else follows from it: who waits and who is a member, how much each has, and what is free. A request
that is evicted or freed has nothing, so whoever takes its slots away sets its state first. Where slots are exchanged,
`Ledger.settle` puts the tables back before anything is counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vmmcache.cache.block_rules import size
from vmmcache.cache.prefix import UNKNOWN, Prefix, PrefixChange
from vmmcache.cache.requests import CacheRequest, RequestState
from vmmcache.cache.tables import NO_SLOT, chosen, show, there
from vmmcache.memory.ranges import subtract

if TYPE_CHECKING:
    from vmmcache.cache.ledger import Ledger

__all__ = ["Settled", "recount"]

ACTIVE, SUSPENDED, EVICTED, FREED = RequestState


class Settled:
    """What a request had of its prompt, and for passing blocks, to be put back where an exchange is interrupted."""

    __slots__ = ("_passing", "_request", "_scratch", "_shared", "_shown")

    def __init__(self, request: CacheRequest, shared: PrefixChange | None) -> None:
        self._request = request
        self._shared = shared
        self._shown = request._shown[:]
        self._scratch = [slots[:] for slots in request._scratch]
        self._passing = request._passing

    def put_back(self) -> None:
        """Have it as it was. What the table shows of the prompt is for `recount`, like all that is counted."""
        request = self._request
        if self._shared is not None:
            self._shared.put_back()
        request._shown, request._scratch, request._passing = self._shown, self._scratch, self._passing


def recount(ledger: Ledger) -> None:
    """Count everything anew. Nobody has a slot that another has, and no slot is lost."""
    for request in list(ledger.requests.values()):
        if request._state is FREED:
            del ledger.requests[request.number]
        elif request._state is EVICTED:
            request._forget()
    resident = [request for request in ledger.requests.values() if request._state in (ACTIVE, SUSPENDED)]
    waiting = {number: request for number, request in ledger.suspended.items() if request._state is SUSPENDED}
    waiting |= {request.number: request for request in resident if request._state is SUSPENDED}
    ledger.suspended.clear()
    ledger.suspended.update(waiting)

    used = [0] * ledger.groups
    taken: list[set[int]] = [set() for _ in used]
    for prefix in ledger.prefixes:
        _recount_prefix(ledger, prefix, [request for request in resident if request.prefix is prefix])
        for number, rule in enumerate(ledger.rules):
            taken[rule.group].update(chosen(prefix._tables[number], prefix._kept[number]))
        for group, number in enumerate(prefix._pinned):
            used[group] += number
    for request in resident:
        _recount_request(ledger, request, taken)
        if request._state is ACTIVE:
            for group, number in enumerate(request._held):
                used[group] += number
    ledger.used[:] = used
    for pool, slots in zip(ledger.pools, taken, strict=True):
        pool.refill(slots)


def _recount_prefix(ledger: Ledger, prefix: Prefix, members: Sequence[CacheRequest]) -> None:
    """Members, and blocks of which all that are there and needed stay."""
    prefix._resident.become(request._history for request in members)
    prefix._active.become(request._history for request in members if request._state is ACTIVE)
    needed = prefix._needed(prefix._resident.shortest)
    kept = [there(table, ranges) for table, ranges in zip(prefix._tables, needed, strict=True)]
    for table, ranges in zip(prefix._tables, kept, strict=True):
        for start, stop in subtract(((0, len(table)),), ranges):
            table[start:stop] = array("i", [NO_SLOT]) * (stop - start)
    prefix._kept, prefix._held = kept, prefix._by_group(kept)
    prefix._pinned = prefix._by_group(prefix._needed(prefix._active.shortest))
    prefix._settled = (prefix._active.shortest, prefix._resident.shortest if kept == needed else UNKNOWN)


def _recount_request(ledger: Ledger, request: CacheRequest, taken: Sequence[set[int]]) -> None:
    """What a request has, and what it shows of its prompt."""
    held = [0] * ledger.groups
    for number, rule in enumerate(ledger.rules):
        table, kept = request._tables[number], request._kept[number]
        held[rule.group] += size(kept)
        taken[rule.group].update(chosen(table, kept))
        prefix = request.prefix
        if prefix is not None and rule.shares:
            prompt = ((0, min(prefix._block_count, len(table))),)
            show(table, prompt, (), prefix._tables[number])
            show(table, (), request._shown[number], prefix._tables[number])
    for rule, slots in zip(ledger.rules, request._scratch, strict=False):
        held[rule.group] += len(slots)
        taken[rule.group].update(slots)
    request._held = held
