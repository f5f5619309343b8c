"""`Slots`: slots per pool group handed to requests, taken back, and handed on. Pure bookkeeping: no tensor, no device.

How many slots a request takes is what `vmmcache.planning` counted for it, so a batch that was declared as a constraint
fits the pools that were planned for it, to its last request. Parts: `ledger` (who has what), `block_rules` (which
blocks of a request have slots), `free_list`, `tables`, `prefix` (shared prompts), `eviction`, `resizing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from vmmcache.cache.block_rules import Ranges
from vmmcache.cache.eviction import write_backup
from vmmcache.cache.ledger import Ledger
from vmmcache.cache.mover import SlotMover
from vmmcache.cache.prefix import Prefix
from vmmcache.cache.requests import CacheRequest, RequestState, expect
from vmmcache.cache.slot_facts import lengths
from vmmcache.cache.slot_upkeep import SlotUpkeep, checked_counts
from vmmcache.errors import ConfigError, SlotsExhausted
from vmmcache.memory.undo import UndoStack
from vmmcache.planning.exact import as_exact
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.limits import MAX_SLOTS, as_size

__all__ = ["Slots"]

ACTIVE, SUSPENDED, EVICTED, FREED = RequestState


class Slots(SlotUpkeep):
    """The slots of a cache, and the requests that have them. Safe to call from any thread.

    After Ctrl-C in the middle of a method what was asked for was done, or it was not; no slot is lost, and none is had
    twice. A request that it kept from its caller is in `requests`.

    Parameters
    ----------
    layout : CacheLayout
        Layers of this rank.
    counts : sequence of int
        Slots per pool group.
    max_util_for_resume : float or Fraction, default 0.97
        Share of a group's slots that active requests may have where another is resumed; the one that was planned with.
    null_block : bool, default False
        Keep slot 0 of every group out: engines point padding at it.
    scratch_rewind : int, optional
        Tokens that a step may take back, with scratch reuse of windowed layers on; None is off.
    mover : SlotMover, optional
        Moves contents: a backing of the cache. Without one nothing is backed up, and a cache that shrinks evicts where
        it would move.

    Raises
    ------
    ConfigError
        An argument is wrong.
    """

    def __init__(
        self,
        layout: CacheLayout,
        counts: Iterable[int],
        *,
        max_util_for_resume: float | Fraction = 0.97,
        null_block: bool = False,
        scratch_rewind: int | None = None,
        mover: SlotMover | None = None,
    ) -> None:
        if not isinstance(layout, CacheLayout):
            raise ConfigError("layout", layout, "must be a CacheLayout")
        self._gate = as_exact("max_util_for_resume", max_util_for_resume)
        if self._gate < 0:
            raise ConfigError("max_util_for_resume", max_util_for_resume, "must not be negative")
        if scratch_rewind is not None:
            scratch_rewind = as_size("scratch_rewind", scratch_rewind, unit="tokens")
        checked = checked_counts(layout, counts)
        super().__init__(layout, Ledger(layout, checked, int(bool(null_block)), scratch_rewind, mover))
        self._growing: Final = [group for group, pools in enumerate(layout.groups) if not pools.constant]
        self._last = 0

    # Requests --------------------------------------------------------------------------------------------------------

    def allocate(self, capacity: int, history_length: int = 0, *, prefix: Prefix | None = None) -> CacheRequest:
        """Make an active request, with slots for all blocks that it needs.

        Parameters
        ----------
        capacity : int
            Tokens for which it has blocks.
        history_length : int, default 0
            Tokens of these whose keys and values are there already, or will be before the first step.
        prefix : Prefix, optional
            The shared prompt that it begins with. Blocks of it that no other member has are new, and to be computed;
            `CacheRequest.lost` says so where `history_length` covers some of them.

        Raises
        ------
        SlotsExhausted
            Too few slots, also if all suspended requests were evicted. Nothing has changed.
        ConfigError
            An argument is wrong.
        """
        capacity, history = lengths(capacity, history_length)
        ledger = self._ledger
        if prefix is not None:
            self._own(prefix)
        with ledger.lock, ledger:
            request = CacheRequest(ledger, self._last + 1, capacity, history, prefix)
            missing = ledger.settle(request, capacity, history, lost=False)
            if missing is not None:
                request._lost = self._covers(history, missing)
            self._last += 1
            request._state = ACTIVE
            ledger.requests[request.number] = request
        return request

    def grow(self, request: CacheRequest, capacity: int, history_length: int | None = None) -> None:
        """Give an active request blocks for `capacity` tokens, and take back those that are stale by now.

        What became stale is free before anything new is taken.

        Parameters
        ----------
        request : CacheRequest
        capacity : int
            At least what it has.
        history_length : int, optional
            Tokens computed by now, at least as many as before; None where nothing was computed meanwhile.

        Raises
        ------
        SlotsExhausted
            Too few slots, also if all suspended requests were evicted. Nothing has changed.
        StateError
            The request is not active.
        ConfigError
            An argument is wrong, or a step took back more tokens than `scratch_rewind`.
        """
        self._own(request)
        ledger = self._ledger
        with ledger.lock:
            expect(request, "grow")
            before = request._history
            capacity, history = lengths(capacity, before if history_length is None else history_length)
            if capacity < request._capacity:
                raise ConfigError("capacity", capacity, f"a request keeps what it has, here {request._capacity} tokens")
            if history < before:
                raise ConfigError("history_length", history, f"what is computed stays computed, here {before} tokens")
            if history > before and request._passing:
                self._refuse_taken_back(request, history)
            with ledger:
                ledger.settle(request, capacity, history, lost=False)

    def suspend(self, request: CacheRequest, backup: bool = False) -> None:
        """Let others have an active request's slots when they need them; until then it keeps them.

        Parameters
        ----------
        request : CacheRequest
        backup : bool, default False
            Copy its contents to the host when it is evicted, and bring them back when it is resumed. Without, an
            evicted request has lost them.

        Raises
        ------
        StateError
            The request is not active.
        ConfigError
            A backup without a mover.
        """
        self._own(request)
        ledger = self._ledger
        self._refuse_backup(backup)
        with ledger.lock:
            expect(request, "suspend")
            with ledger:
                ledger.unpin(request)
                request._wants_backup = bool(backup)
                ledger.suspended[request.number] = request
                request._state = SUSPENDED
                ledger.suspends += 1

    def resume(self, request: CacheRequest) -> bool:
        """Make a suspended request active again; False where that has to wait, and then nothing has changed.

        It has to wait where active requests have more than `max_util_for_resume` of a group's slots, before this one
        takes any, or where it was evicted and there are too few for it. Groups of SSM states alone do not count. If
        bringing back its contents fails, it is evicted as before and keeps its copy, but requests that were evicted
        for it stay evicted.

        Raises
        ------
        StateError
            The request is not suspended.
        """
        self._own(request)
        ledger = self._ledger
        with ledger.lock:
            expect(request, "resume")
            over, under = self._gate.numerator, self._gate.denominator
            for group in self._growing:
                if ledger.used[group] * under > over * ledger.pools[group].usable:
                    ledger.refusals += 1
                    return False
            if ledger.shut:
                ledger.refusals += 1
                return False
            with ledger:
                if request._state is SUSPENDED:
                    ledger.pin(request)
                    request._state = ACTIVE
                    del ledger.suspended[request.number]
                else:
                    try:
                        missing = ledger.settle(request, request._capacity, request._history, lost=request._lost)
                    except SlotsExhausted:
                        ledger.refusals += 1
                        return False
                    if request._backup is not None:
                        write_backup(ledger, request, missing)
                    request._state, request._backup = ACTIVE, None
                ledger.resumes += 1
        return True

    def free(self, request: CacheRequest) -> None:
        """Give back all that a request has, in whatever state.

        Raises
        ------
        StateError
            The request was freed already.
        """
        self._own(request)
        ledger = self._ledger
        with ledger.lock:
            expect(request, "free")
            with ledger:
                was, request._state, request._backup = request._state, FREED, None
                del ledger.requests[request.number]
                if was is not EVICTED:
                    ledger.release(request, was)
                request._tables.clear()
                request._scratch.clear()

    def share(self, tokens: int) -> Prefix:
        """A prompt that requests share, for `allocate`. Only whole blocks are shared.

        Parameters
        ----------
        tokens : int
            Length of the prompt.
        """
        tokens = as_size("tokens", tokens, unit="tokens")
        blocks = tokens // self.layout.tokens_per_block
        return Prefix(self._ledger, blocks * self.layout.tokens_per_block, blocks)

    def dummy(
        self, history: int = 0, tokens: int = 1, *, draft: int = 0, extra: int = 0, count: int = 1
    ) -> list[CacheRequest]:
        """Equal requests for warm-up: each has just the capacity that its step writes, and no token more.

        Parameters
        ----------
        history : int, default 0
            Tokens computed.
        tokens, draft, extra : int
            Tokens that the step writes: of the request itself, of draft tokens, and others.
        count : int, default 1
            How many. All or none.

        Raises
        ------
        SlotsExhausted
            Too few slots for all of them.
        """
        history = as_size("history", history, unit="tokens")
        writes = sum(
            as_size(name, value, unit="tokens")
            for name, value in (("tokens", tokens), ("draft", draft), ("extra", extra))
        )
        count = as_size("count", count, minimum=1, maximum=MAX_SLOTS, unit="requests")
        capacity, _ = lengths(history + writes, history)
        ledger = self._ledger
        with ledger.lock, ledger:
            before = self._last
            needed = [number * count for number in ledger.needs(capacity, history, None)]
            ledger.make_room(needed, needed)
            with UndoStack() as undo:
                undo.callback(self._free_since, before)
                requests = [self.allocate(capacity, history) for _ in range(count)]
                undo.commit()
        return requests

    # Help ------------------------------------------------------------------------------------------------------------

    def _free_since(self, number: int) -> None:
        for request in [each for each in self._ledger.requests.values() if each.number > number]:
            self.free(request)

    def _covers(self, history: int, missing: Sequence[Ranges]) -> bool:
        """Whether a history reaches into blocks that were not there."""
        computed = -(-history // self.layout.tokens_per_block)
        return any(start < computed for ranges in missing for start, _ in ranges)

    def _refuse_taken_back(self, request: CacheRequest, history: int) -> None:
        for rule, passing in zip(self._ledger.rules, request._passing, strict=True):
            if passing[0] < passing[1] and rule.took_back(passing, history):
                raise ConfigError(
                    "history_length",
                    history,
                    f"the step of {request!r} took back more tokens than scratch_rewind: blocks {passing[0]} to"
                    f" {passing[1] - 1} only passed through scratch slots, and tokens up to there are still seen",
                )
