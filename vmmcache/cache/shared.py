"""One device, one measurement, one or more managers: a target model and its draft model share what is left.

What the device has for all caches is measured once, with all of them in place (S1), and split among those whose size
is not decided yet: what each has declared comes first; the rest is split by weights, which are the bytes that a token
takes unless the caller gives others, so that by default all of them hold the same number of tokens. Where not even what
was declared fits, each gets what it cannot do without, and the rest goes in proportion to what each lacks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple, Protocol

from vmmcache.cache.budget import MemoryBudget, Mode
from vmmcache.cache.sizing import Budget, committable, estimated_budget, measured_budget, temporary_quota
from vmmcache.cache.snapshots import MemoryReader, Snapshot
from vmmcache.errors import ConfigError, QuotaError, StateError
from vmmcache.planning.exact import as_exact
from vmmcache.units import format_bytes

__all__ = ["Demand", "Member", "SharedDevice", "split"]


class Demand(NamedTuple):
    """What one cache asks of a device, in bytes."""

    least: int
    """What it cannot do without: requests that may shrink, shrunk as far as they may."""
    asked: int
    """What its constraints take as they were declared."""
    per_token: int


class Member(Protocol):
    """What a shared device sees of a manager."""

    @property
    def mode(self) -> Mode:
        """Its path."""

    @property
    def manual(self) -> bool:
        """Whether its size was stated."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the device that it holds now."""

    @property
    def final_bytes(self) -> int | None:
        """Bytes that it has for good; None until that is decided."""

    def demand(self) -> Demand:
        """What it asks for."""


class SharedDevice:
    """Managers on one device that measure together.

    Make it, give it to each `KVCacheManager` as ``shared``, warm all of them up, then finalize one after the other. The
    first `finalize` measures for all; none may join afterwards.

    Parameters
    ----------
    budget : MemoryBudget, optional
        How much of the device all caches together may take. Managers then have none of their own, except a size in
        bytes or slots, which they get first.
    weights : sequence of float, optional
        One for each manager, in the order in which they join, for the split of what is beyond the constraints. By
        default the bytes that one token takes.

    Raises
    ------
    ConfigError
        The budget is a size, or a weight is negative or no number.
    """

    def __init__(self, budget: MemoryBudget | None = None, weights: Sequence[float] | None = None) -> None:
        self.budget: Final = MemoryBudget() if budget is None else budget
        if self.budget.manual:
            raise ConfigError("budget", self.budget, "give sizes to the managers; what is shared is measured")
        self._weights = None if weights is None else [as_exact("weights", weight) for weight in weights]
        if self._weights is not None and (min(self._weights, default=0) < 0 or not any(self._weights)):
            raise ConfigError("weights", weights, "must not be negative, and one of them positive")
        self._lock = threading.RLock()
        self._members: list[Member] = []
        self._joined = 0
        self._order: dict[int, int] = {}
        self._start: Snapshot | None = None
        self._measured: tuple[Snapshot, Budget] | None = None
        self.peak = 0
        """Largest transient peak that any member has seen, in bytes."""

    def __repr__(self) -> str:
        return f"<SharedDevice of {len(self._members)} managers>"

    @property
    def members(self) -> int:
        """How many managers there are on the device whose size is measured."""
        with self._lock:
            return sum(not member.manual for member in self._members)

    @property
    def committed(self) -> int:
        """Bytes of the device that all members hold."""
        return sum(member.held_bytes for member in self._members)

    @property
    def start(self) -> Snapshot:
        """What the device was like before the first member took any of it."""
        assert self._start is not None
        return self._start

    def snapshot(self, reader: MemoryReader, stage: str) -> Snapshot:
        """What the device is like now."""
        with self._lock:
            return reader.snapshot(stage, self.committed)

    def begin(self, reader: MemoryReader, free_at_start: int | None) -> Snapshot:
        """The snapshot against which all others are compared: taken before the first member joins."""
        with self._lock:
            if self._start is None or not self._members:
                now = reader.snapshot("start", self.committed)
                if free_at_start is not None:
                    now = Snapshot(free_at_start, now.total, now.source, 0, now.reserved_peak, now.live, "start")
                self._start = now
            return self._start

    def join(self, member: Member) -> None:
        """Take a manager in.

        Raises
        ------
        StateError
            What is shared was measured already.
        ConfigError
            It is on the other path than those before it, or has no weight.
        """
        with self._lock:
            if self._measured is not None:
                raise StateError(
                    f"{self!r} was measured already, and what is left was split; make all managers before the first "
                    "is finalized",
                    state="measured",
                    event="join",
                )
            if self._weights is not None and self._joined >= len(self._weights):
                raise ConfigError("weights", self._weights, f"there is none for manager {self._joined}")
            for other in self._members:
                if other.mode != member.mode:
                    raise ConfigError(
                        "shared", self, f"one manager is {other.mode}, this one {member.mode}: give both the same vmm="
                    )
            self._order[id(member)] = self._joined
            self._joined += 1
            self._members.append(member)

    def leave(self, member: Member) -> None:
        """Let a manager go. The second time does nothing."""
        with self._lock:
            self._members = [other for other in self._members if other is not member]
            self._measured = None  # what it had is free again

    def saw_peak(self, nbytes: int) -> None:
        """Note a transient peak."""
        with self._lock:
            self.peak = max(self.peak, nbytes)

    # How much --------------------------------------------------------------------------------------------------------

    def bound(self, reader: MemoryReader, mode: Mode) -> int:
        """Bytes that all members without a size of their own may have together while they warm up."""
        with self._lock:
            now = self.snapshot(reader, "committable")
            if mode == "estimated":
                nbytes = temporary_quota(self.budget, self.start, now)
            else:
                nbytes = committable(self.budget, self.start, now, self.peak)
            return max(0, nbytes - sum(member.final_bytes or 0 for member in self._members if member.manual))

    def measure(self, reader: MemoryReader, mode: Mode, *, again: bool = False) -> tuple[Snapshot, Budget]:
        """What the device has for all members: measured by the first who asks, or where it is to be done `again`."""
        with self._lock:
            if self._measured is None or again:
                reader.settle()
                now = self.snapshot(reader, "warm")
                formula = measured_budget if mode == "measured" else estimated_budget
                self._measured = now, formula(self.budget, self.start, now, self.peak)
            return self._measured

    def share(self, member: Member, nbytes: int) -> int:
        """Of `nbytes` for all members, those for this one.

        Raises
        ------
        QuotaError
            Those whose size is not decided yet cannot do with what is left.
        """
        with self._lock:
            left = max(0, nbytes - sum(other.final_bytes or 0 for other in self._members if other is not member))
            pending = [other for other in self._members if other is member or other.final_bytes is None]
            if len(pending) == 1:
                return left
            demands = [other.demand() for other in pending]
            weights = [
                Fraction(demand.per_token) if self._weights is None else self._weights[self._order[id(other)]]
                for other, demand in zip(pending, demands, strict=True)
            ]
            return split(left, demands, weights)[pending.index(member)]


def split(nbytes: int, demands: Sequence[Demand], weights: Sequence[Fraction]) -> list[int]:
    """Bytes for each of several caches that share `nbytes`.

    >>> split(100, [Demand(10, 10, 3), Demand(10, 20, 1)], [Fraction(3), Fraction(1)])
    [62, 37]
    >>> split(25, [Demand(10, 10, 3), Demand(10, 20, 1)], [Fraction(3), Fraction(1)])
    [10, 15]

    Raises
    ------
    QuotaError
        Not even the least of each fits.
    """
    least, asked = sum(demand.least for demand in demands), sum(demand.asked for demand in demands)
    if nbytes < least:
        raise QuotaError(
            f"{len(demands)} caches share {nbytes} bytes ({format_bytes(nbytes)}) and need {least} "
            f"({format_bytes(least)}) at least, {', '.join(str(demand.least) for demand in demands)}. Declare fewer or "
            "shorter requests in one of them, or put one on another device",
            needed=least,
            usable=nbytes,
            configured=nbytes,
            cause="fixed",
        )
    if nbytes < asked:
        base = [demand.least for demand in demands]
        lack = [Fraction(demand.asked - demand.least) for demand in demands]
    else:
        base, lack = [demand.asked for demand in demands], list(weights)
    rest, total = nbytes - sum(base), sum(lack)
    if not total:
        lack, total = [Fraction(1)] * len(demands), Fraction(len(demands))
    return [first + int(rest * part / total) for first, part in zip(base, lack, strict=True)]
