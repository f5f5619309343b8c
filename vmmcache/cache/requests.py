"""A request as the cache sees it, and the states that it goes through, as one table.

Theory of operation
-------------------
- ACTIVE: its slots are its own. It may grow.
- SUSPENDED: its slots keep their contents until somebody else needs them.
- EVICTED: somebody did. It has no slots, perhaps a copy of what they held, and gets others when it is resumed.
- FREED: nothing is left of it. No event leads out of here.

An event that is not in the table raises StateError, and nothing changes. Eviction is not an event that a caller asks
for: it befalls suspended requests, the least recently suspended first.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from vmmcache.cache.block_rules import NO_BLOCKS, Ranges
from vmmcache.cache.free_list import SlotArray
from vmmcache.cache.scratch import Scratch
from vmmcache.cache.tables import empty_tables, padded
from vmmcache.errors import ConfigError, StateError
from vmmcache.memory.ranges import Range
from vmmcache.planning.limits import as_size

if TYPE_CHECKING:
    from vmmcache.cache.ledger import Ledger
    from vmmcache.cache.prefix import Prefix

__all__ = ["ALLOWED", "CacheRequest", "RequestState", "expect"]


class RequestState(enum.Enum):
    """What a request has."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    EVICTED = "evicted"
    FREED = "freed"


# Tuples: looked through by identity, where a set would call the hash of an enum, which is a function in Python.
ALLOWED: Final[Mapping[str, tuple[RequestState, ...]]] = MappingProxyType(
    {
        "grow": (RequestState.ACTIVE,),
        "suspend": (RequestState.ACTIVE,),
        "resume": (RequestState.SUSPENDED, RequestState.EVICTED),
        "free": (RequestState.ACTIVE, RequestState.SUSPENDED, RequestState.EVICTED),
    }
)
"""For each event, the states in which it is allowed."""

_CURE: Final = {
    RequestState.ACTIVE: "suspend() it first",
    RequestState.SUSPENDED: "resume() it first",
    RequestState.EVICTED: "resume() it first",
    RequestState.FREED: "allocate() another",
}


_EVICTED: Final = RequestState.EVICTED
"""Looking a member up in an enumeration takes as long as making a list."""


class CacheRequest:
    """One request of `Slots`: how long it is, and where its blocks are.

    Made by `Slots.allocate`, changed by the methods of `Slots` only.
    """

    __slots__ = (
        "__weakref__",
        "_backup",
        "_capacity",
        "_held",
        "_history",
        "_kept",
        "_ledger",
        "_lost",
        "_passing",
        "_scratch",
        "_shown",
        "_state",
        "_tables",
        "_wants_backup",
        "number",
        "prefix",
    )

    def __init__(self, ledger: Ledger, number: int, capacity: int, history: int, prefix: Prefix | None) -> None:
        self.number: Final = number
        """Tells it from every other request of its cache, freed ones too."""
        self.prefix: Final = prefix
        """The shared prompt that its first blocks belong to."""
        self._ledger: Final = ledger
        self._capacity = capacity
        self._history = history
        self._state = _EVICTED
        self._lost = False
        self._wants_backup = False
        self._backup: Any = None
        self._forget()

    def __repr__(self) -> str:
        length = f"capacity {self._capacity}, history {self._history} tokens"
        return f"<CacheRequest {self.number}, {self._state.value}, {length}>"

    @property
    def capacity(self) -> int:
        """Tokens for which it has blocks."""
        return self._capacity

    @property
    def history_length(self) -> int:
        """Tokens whose keys and values are computed."""
        return self._history

    @property
    def state(self) -> RequestState:
        """What it has now. SUSPENDED may become EVICTED at any time."""
        return self._state

    @property
    def lost(self) -> bool:
        """Whether contents of its history are gone, so that they have to be computed again.

        Because it was evicted without a backup, or because blocks of its prefix were not there any more. Stays until
        the next `Slots.grow`. Where all layers see all tokens, they can be computed again in place; where a layer has
        a window, blocks that the computation passes through are stale and have no slots: free it, and allocate anew.
        """
        return self._lost

    def blocks(self, life_cycle: int, start: int = 0, stop: int | None = None) -> SlotArray:
        """The slot of each block, -1 where it has none: stale, passing, or not there.

        Parameters
        ----------
        life_cycle : int
            Place in the layout's list of life cycles. A state (SSM) is one block, whatever the capacity.
        start, stop : int, optional
            Blocks wanted; all of them by default.

        Returns
        -------
        array.array
            32-bit signed integers ('i'), a copy that is yours: ``torch.frombuffer(blocks, dtype=torch.int32)``.

        Raises
        ------
        StateError
            The request was freed.
        ConfigError
            There is no such life cycle.
        """
        with self._ledger.lock:
            rule = self._ledger.rules[self._known(life_cycle)]
            end = rule.blocks(self._capacity)
            start = min(as_size("start", start, unit="blocks"), end)
            stop = end if stop is None else min(as_size("stop", stop, unit="blocks"), end)
            return padded(self._tables[life_cycle], start, stop)

    def scratch(self, life_cycle: int) -> Scratch:
        """Blocks that only pass in this step, and where; empty without scratch reuse, and where there are none.

        Raises
        ------
        StateError
            The request was freed.
        ConfigError
            There is no such life cycle.
        """
        with self._ledger.lock:
            self._known(life_cycle)
            if not self._passing:
                return Scratch(0, 0, array("i"))
            return Scratch(*self._passing[life_cycle], self._scratch[life_cycle][:])

    def _forget(self) -> None:
        """Have no slots. They are the caller's to give back."""
        ledger = self._ledger
        cycles = len(ledger.rules)
        self._kept: list[Ranges] = [NO_BLOCKS] * cycles
        self._shown: list[Ranges] = [NO_BLOCKS] * cycles
        self._passing: list[Range] = []
        self._tables = empty_tables(cycles)
        self._scratch = empty_tables(cycles) if ledger.rewinds else []
        self._held = [0] * ledger.groups

    def _known(self, life_cycle: int) -> int:
        if self._state is RequestState.FREED:
            raise StateError(f"{self!r} has no blocks; allocate() another", state="freed", event="blocks")
        if not 0 <= life_cycle < len(self._tables):
            raise ConfigError("life_cycle", life_cycle, f"the layout has {len(self._tables)}")
        return life_cycle


def expect(request: CacheRequest, event: str) -> None:
    """Raise StateError where the request's state does not allow `event`."""
    if request._state not in ALLOWED[event]:
        state = request._state
        cure = _CURE[state]
        raise StateError(f"{request!r} does not allow {event}(); {cure}", state=state.value, event=event)
