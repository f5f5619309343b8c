"""What slots can be asked: how many there are, who has them, and what would fit."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from vmmcache.cache.ledger import Ledger
from vmmcache.cache.prefix import Prefix
from vmmcache.cache.requests import CacheRequest
from vmmcache.errors import ConfigError
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.limits import MAX_SIZE, MAX_SLOTS, as_size

__all__ = ["SlotFacts", "lengths"]


class SlotFacts:
    """The half of `vmmcache.cache.slots.Slots` that changes nothing."""

    def __init__(self, layout: CacheLayout, ledger: Ledger) -> None:
        self.layout: Final = layout
        self._ledger: Final = ledger

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self.counts)}, {len(self.requests)} requests>"

    @property
    def requests(self) -> tuple[CacheRequest, ...]:
        """All that were not freed, in the order in which they were allocated."""
        with self._ledger.lock:
            return tuple(self._ledger.requests.values())

    @property
    def counts(self) -> tuple[int, ...]:
        """Slots per pool group, the null block included."""
        with self._ledger.lock:
            return tuple(pool.count for pool in self._ledger.pools)

    @property
    def usable(self) -> tuple[int, ...]:
        """Slots per pool group that requests can have."""
        with self._ledger.lock:
            return tuple(pool.usable for pool in self._ledger.pools)

    def free_slots(self, group: int) -> int:
        """Slots of a group that nobody has."""
        return self._ledger.pools[self._known(group)].free

    def evictable_slots(self, group: int) -> int:
        """Slots of a group that only suspended requests have."""
        with self._ledger.lock:
            return self._ledger.left(self._known(group)) - self._ledger.pools[group].free

    def utilisation(self, group: int) -> Fraction:
        """Share of a group's usable slots that active requests have; 0 where there are none."""
        with self._ledger.lock:
            usable = self._ledger.pools[self._known(group)].usable
            return Fraction(self._ledger.used[group], usable) if usable else Fraction(0)

    def fits(self, capacity: int, history_length: int = 0, *, prefix: Prefix | None = None) -> bool:
        """Whether `allocate` with the same arguments would succeed now."""
        capacity, history = lengths(capacity, history_length)
        if prefix is not None:
            self._own(prefix)
        with self._ledger.lock:
            needed = self._ledger.needs(capacity, history, prefix)
            return all(number <= self._ledger.left(group) for group, number in enumerate(needed))

    def longest(self, batch: int = 1, upper: int = MAX_SIZE, *, draft: int = 0, extra: int = 0) -> int:
        """Tokens to which one more request could grow now, step by step, beside `batch` - 1 others that just begin.

        A step writes one token, and draft and extra ones. Every capacity up to the answer fits, with all but the tokens
        of its step computed, and so does exactly that one: `dummy` with ``history=longest - 1 - draft - extra`` and the
        same `draft` and `extra`. It ends with a block, or is `upper`, or, with scratch reuse, ends before a step that
        begins a block of its history, which then no longer passes; 0 where not even one step fits.

        Parameters
        ----------
        batch : int, default 1
            Requests that begin together.
        upper : int, optional
            Tokens beyond which the answer does not matter.
        draft, extra : int, default 0
            As for `Slots.dummy`. In a windowed layer, the more a step writes the more it has to hold at once.
        """
        batch = as_size("batch", batch, minimum=1, maximum=MAX_SLOTS, unit="requests")
        upper = as_size("upper", upper, unit="tokens")
        writes = 1 + sum(as_size(name, value, unit="tokens") for name, value in (("draft", draft), ("extra", extra)))
        t = self.layout.tokens_per_block
        with self._ledger.lock:
            others = self._ledger.needs(writes, 0, None)
            left = [self._ledger.left(group) - (batch - 1) * number for group, number in enumerate(others)]

            def fits(capacity: int) -> bool:
                needed = self._ledger.needs(capacity, max(0, capacity - writes), None)
                return all(need <= free for need, free in zip(needed, left, strict=True))

            # The first token of a block is the worst: the block is there, and what it makes stale is not yet. With
            # scratch reuse so is the step whose history has just begun a block, which then stays and does not pass.
            # From one such step to the next, need never falls.
            def worst(block: int) -> set[int]:
                first = max(writes, (block - 1) * t + 1)
                return {first, first + (writes + 1 - first) % t} if self._ledger.rewinds else {first}

            if upper < writes or not fits(writes):
                return 0
            low, high = (writes - 1) // t, -(-upper // t) + 1
            while low < high - 1:
                middle = (low + high) // 2
                if all(map(fits, worst(middle))):
                    low = middle
                else:
                    high = middle
            beyond = next(capacity for capacity in sorted(worst(low + 1)) if capacity > upper or not fits(capacity))
        return min(beyond - 1, upper)

    def _own(self, thing: CacheRequest | Prefix) -> None:
        if getattr(thing, "_ledger", None) is not self._ledger:
            raise ConfigError("prefix" if isinstance(thing, Prefix) else "request", thing, "is not one of these slots'")

    def _known(self, group: int) -> int:
        return as_size("group", group, maximum=self._ledger.groups - 1, unit="pool groups")


def lengths(capacity: int, history_length: int) -> tuple[int, int]:
    """Give both back as tokens, or raise a ConfigError."""
    if type(capacity) is type(history_length) is int and 0 <= history_length <= capacity <= MAX_SIZE:
        return capacity, history_length
    capacity = as_size("capacity", capacity, unit="tokens")
    history_length = as_size("history_length", history_length, unit="tokens")
    if history_length > capacity:
        raise ConfigError("history_length", history_length, f"is above the capacity of {capacity} tokens")
    return capacity, history_length
