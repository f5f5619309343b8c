"""Who has which slots: the bookkeeping behind `vmmcache.cache.slots.Slots`, which checks arguments and holds the lock.

Per pool group three numbers say everything: how many slots there are (`FreeList.usable`), how many nobody has
(`FreeList.free`), and how many belong to active requests (`used`, with the blocks of shared prompts that an active
member needs). What is left belongs to suspended requests alone, and is there for whoever needs it: it is *evictable*.
So a request can get its slots exactly if `used` and what it adds are no more than there are.

Every change has the same order: count, see whether that is enough, make room, and only then touch a table, first what
is given up and then what is taken. Nothing after the counting can fail, but for a mover that fails to copy what is to
be evicted, and that comes before anything is evicted.

It can be interrupted, though, anywhere. So a request changes its state, or its lengths, in one statement that calls
nothing, and what is counted is counted anew where an error leaves a block ``with ledger`` (see `recount`).
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import Final
from weakref import WeakSet

from vmmcache.cache.block_rules import Ranges, rules_of, size
from vmmcache.cache.eviction import read_backup, victims
from vmmcache.cache.free_list import FreeList, SlotArray
from vmmcache.cache.mover import SlotMover
from vmmcache.cache.prefix import Prefix, PrefixChange, repin, replace, shed
from vmmcache.cache.recount import Settled, recount
from vmmcache.cache.requests import CacheRequest, RequestState
from vmmcache.cache.tables import chosen, occupy, put_back, show, vacate
from vmmcache.errors import SlotsExhausted
from vmmcache.memory.ranges import Range
from vmmcache.memory.undo import UndoStack
from vmmcache.planning.layout import CacheLayout

__all__ = ["Ledger"]

ACTIVE, SUSPENDED, EVICTED, _ = RequestState


class Ledger:
    """Slots of all groups, and the requests that have them."""

    __slots__ = (
        *("groups", "lock", "mover", "pools", "prefixes", "requests", "rewinds", "rules", "shut", "suspended", "used"),
        *("evictions", "refusals", "resumes", "suspends"),
    )

    def __init__(
        self, layout: CacheLayout, counts: Sequence[int], reserved: int, rewind: int | None, mover: SlotMover | None
    ) -> None:
        self.lock: Final = threading.RLock()
        self.rules: Final = rules_of(layout, rewind)
        self.groups: Final = len(layout.groups)
        self.rewinds: Final = rewind is not None
        self.pools: Final = [FreeList(count, reserved) for count in counts]
        self.used: Final = [0] * self.groups
        self.mover: Final = mover
        self.requests: Final[dict[int, CacheRequest]] = {}
        """All that were not freed, by number."""
        self.suspended: Final[dict[int, CacheRequest]] = {}
        """Those that are suspended and not evicted, the least recently suspended first."""
        self.prefixes: Final[WeakSet[Prefix]] = WeakSet()
        self.shut = False
        """Whether nobody gets slots for a while, however many are free."""
        self.suspends = self.resumes = self.refusals = self.evictions = 0
        """How often, for the metrics; refusals are resumes that had to wait."""

    def __enter__(self) -> None:
        """Begin a change. The lock is not taken here, where an interrupt would leave it taken."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SlotsExhausted):
            recount(self)

    def settle(self, request: CacheRequest, capacity: int, history: int, *, lost: bool) -> list[Ranges] | None:
        """Let an active request, or one that comes in, have what (capacity, history) needs. All or nothing.

        `lost` is what the request says of its contents from then on. Inside of ``with ledger``.

        Returns
        -------
        list of Ranges, or None
            Blocks of the shared prompt that were not there, for each life cycle; None where there is no prompt.

        Raises
        ------
        SlotsExhausted
            There are too few.
        """
        prefix = request.prefix
        prompt = 0 if prefix is None else prefix._block_count
        kept, tables, pools = request._kept, request._tables, self.pools
        more = [0] * self.groups
        changes = []
        for number, rule in enumerate(self.rules):
            after, before = rule.kept(capacity, history, prompt), kept[number]
            if after != before:
                changes.append((number, pools[rule.group], before, after))
                more[rule.group] += size(after) - size(before)
        scratch = self._count_scratch(request, capacity, history, prompt, more) if self.rewinds else None
        if prefix is None and scratch is None and not changes:
            request._capacity, request._history, request._lost = capacity, history, lost
            return None
        shared = None
        if prefix is None:
            self.make_room(more, more)
        else:
            shared = self._make_room_for_member(request, prefix, history, more)

        given: list[SlotArray] = []
        was = None if shared is None and scratch is None else Settled(request, shared)
        done = False
        try:
            for number, pool, before, after in changes:
                if before:
                    given.append(slots := array("i"))
                    if vacate(tables[number], before, after, slots):
                        pool.give(slots)
            if shared is not None:
                shared.give()
            if scratch is not None:
                self._give_scratch(request, scratch)

            missing = None if shared is None else shared.finish()
            for number, pool, before, after in changes:
                occupy(tables[number], before, after, pool.take)
                kept[number] = after
            if scratch is not None:
                self._take_scratch(request, scratch)
            if prefix is not None:
                for number, rule in enumerate(self.rules):
                    shown = rule.shared(history, min(prompt, rule.blocks(capacity)))
                    show(tables[number], request._shown[number], shown, prefix._tables[number])
                    request._shown[number] = shown

            held, used = request._held, self.used
            for group, number in enumerate(more):
                held[group] += number
                used[group] += number
            request._capacity, request._history, request._lost, done = capacity, history, lost, True
        finally:
            if not done:
                if was is not None:
                    was.put_back()
                for number, _, before, after in changes:
                    put_back(tables[number], before, after, given.pop(0) if before and given else array("i"))
                    kept[number] = before
        return missing

    def _make_room_for_member(
        self, request: CacheRequest, prefix: Prefix, history: int, more: Sequence[int]
    ) -> PrefixChange:
        """See to it that there is room for `more`, and for what it does to its prompt that a member has `history`."""
        was = request._history if request._state is ACTIVE else None
        with UndoStack() as undo:
            replace(prefix, was, history)
            undo.callback(replace, prefix, history, was)
            change = PrefixChange(self, prefix)
            evicted = self.make_room(change.used(more), change.taken(more), change)
            undo.commit()
        # Perhaps other members went, and with them blocks that nobody needs any more.
        return PrefixChange(self, prefix) if evicted else change

    def _count_scratch(
        self, request: CacheRequest, capacity: int, history: int, prompt: int, more: list[int]
    ) -> list[tuple[Range, int]]:
        """For each life cycle the blocks that pass, and their slots; what that changes is added to `more`."""
        scratch = []
        for rule, slots in zip(self.rules, request._scratch, strict=True):
            passing = rule.passing(capacity, history, prompt)
            scratch.append((passing, rule.scratch(passing)))
            more[rule.group] += rule.scratch(passing) - len(slots)
        return scratch

    def _give_scratch(self, request: CacheRequest, scratch: Sequence[tuple[Range, int]]) -> None:
        for rule, slots, (_, wanted) in zip(self.rules, request._scratch, scratch, strict=True):
            self.pools[rule.group].give(slots[wanted:])
            del slots[wanted:]

    def _take_scratch(self, request: CacheRequest, scratch: Sequence[tuple[Range, int]]) -> None:
        for rule, slots, (_, wanted) in zip(self.rules, request._scratch, scratch, strict=True):
            slots.extend(self.pools[rule.group].take(wanted - len(slots)))
        request._passing = [passing for passing, _ in scratch]

    def make_room(self, used: Sequence[int], taken: Sequence[int], change: PrefixChange | None = None) -> bool:
        """See to it that `taken` slots of each group are free, of which active requests will have `used` more.

        `change` is what that does to a shared prompt.

        Returns
        -------
        bool
            Whether anything had to be evicted.

        Raises
        ------
        SlotsExhausted
            Active requests leave too few, or nobody gets any for a while; nothing was evicted.
        """
        if self.shut and max(used) > 0:
            group = next(group for group, number in enumerate(used) if number > 0)
            raise SlotsExhausted(
                f"{used[group]} slots of pool group {group} are needed, and while the cache goes to sleep it gives"
                " none; wait until it is awake",
                group=group,
                needed=used[group],
                free=0,
            )
        for number, pool in zip(taken, self.pools, strict=True):
            if number > pool.free:
                break
        else:
            return False
        for group, number in enumerate(used):
            left = self.left(group)
            if number > left:
                pool = self.pools[group]
                raise SlotsExhausted(
                    f"pool group {group} has {left} slots to give ({pool.free} free, {left - pool.free} of suspended"
                    f" requests) of {pool.usable}, and {number} are needed; suspend or free requests, `ensure` more"
                    " during warm-up, or raise the quota",
                    group=group,
                    needed=number,
                    free=left,
                )
        short = [number - pool.free for number, pool in zip(taken, self.pools, strict=True)]
        self.evict(victims(self, short, change=change))
        return True

    def needs(self, capacity: int, history: int, prefix: Prefix | None) -> list[int]:
        """Slots per group that active requests would have more, with one more of them."""
        prompt = 0 if prefix is None else prefix._block_count
        sums = [0] * self.groups
        for rule in self.rules:
            sums[rule.group] += size(rule.kept(capacity, history, prompt))
            if self.rewinds:
                sums[rule.group] += rule.scratch(rule.passing(capacity, history, prompt))
        if prefix is None:
            return sums
        shortest = prefix._active.shortest
        pinned = prefix._by_group(prefix._needed(history if shortest is None else min(shortest, history)))
        return [own + after - before for own, after, before in zip(sums, pinned, prefix._pinned, strict=True)]

    def left(self, group: int) -> int:
        """Slots that active requests do not have: free ones and evictable ones."""
        return self.pools[group].usable - self.used[group]

    def evict(self, requests: Sequence[CacheRequest], backup: bool = False) -> None:
        """Take the slots of suspended requests away, after copying the contents of those that asked for it.

        A mover that fails to copy leaves all as it was. Inside of ``with ledger``.
        """
        copies = [read_backup(self, request) if backup or request._wants_backup else None for request in requests]
        for request, copy in zip(requests, copies, strict=True):
            lost = request._lost or copy is None
            request._backup, request._lost, request._state = copy, lost, EVICTED
            self.evictions += 1
            self.release(request, SUSPENDED)
            request._forget()

    def release(self, request: CacheRequest, was: RequestState) -> None:
        """Give back all that a request has which was active or suspended. What it knows of it is void then."""
        for rule, table, ranges in zip(self.rules, request._tables, request._kept, strict=True):
            if ranges:
                self.pools[rule.group].give(chosen(table, ranges))
        for rule, slots in zip(self.rules, request._scratch, strict=False):
            self.pools[rule.group].give(slots)
        if was is ACTIVE:
            self.unpin(request)
        else:
            del self.suspended[request.number]
        if request.prefix is not None:
            request.prefix._resident.remove(request._history)
            shed(self, request.prefix)

    def pin(self, request: CacheRequest) -> None:
        """Count what a request has as an active one's."""
        for group, number in enumerate(request._held):
            self.used[group] += number
        if request.prefix is not None:
            request.prefix._active.add(request._history)
            repin(self, request.prefix)

    def unpin(self, request: CacheRequest) -> None:
        """Count what an active request has as a suspended one's."""
        for group, number in enumerate(request._held):
            self.used[group] -= number
        if request.prefix is not None:
            request.prefix._active.remove(request._history)
            repin(self, request.prefix)
