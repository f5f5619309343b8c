"""What a manager consists of. Its operations are in files of their own; `vmmcache.cache.manager` is their front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vmmcache.cache.path import Path
from vmmcache.cache.ranks import Measurement, Ranks, measurement_of
from vmmcache.cache.registrations import Registrations
from vmmcache.cache.settings import Settings
from vmmcache.cache.shared import SharedDevice
from vmmcache.cache.slots import Slots
from vmmcache.cache.snapshots import Snapshot
from vmmcache.cache.warmup import WarmupLog
from vmmcache.errors import StateError

__all__ = ["Core"]


@dataclass(slots=True)
class Core:
    """The parts, and what has to be remembered between two operations."""

    settings: Settings
    path: Path
    slots: Slots
    registrations: Registrations
    log: WarmupLog
    fallback_reason: str | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    bound: tuple[int, ...] = ()
    """Slots of each group that warm-up may commit, as agreed on."""
    asleep_counts: tuple[int, ...] = ()
    """Slots of each group that come back when it wakes."""

    @property
    def shared(self) -> SharedDevice:
        """The device, shared or not."""
        return self.settings.shared

    @property
    def ranks(self) -> Ranks:
        """Agreement with the others."""
        return self.settings.ranks

    def snapshot(self, stage: str) -> Snapshot:
        """Read memory, and remember it for the report."""
        now = self.shared.snapshot(self.path.reader, stage)
        self.snapshots.append(now)
        return now

    def follow(self) -> None:
        """Hand out as many slots as there are, whatever became of an operation that failed."""
        self.slots.set_counts(self.path.backing.slots)

    def committable(self) -> list[int]:
        """What this rank could commit while warming up, as `merge_measurements` takes it."""
        path = self.path
        return measurement_of(self.settings.layout, path.mode, path.bound(), path.most()).to_ints()

    def bind(self, numbers: Sequence[int]) -> None:
        """Let warm-up commit no more than was agreed on."""
        path = self.path
        own = measurement_of(self.settings.layout, path.mode, path.most(), path.most())
        agreed = Measurement.from_ints(numbers, "numbers").seen_by(own)
        self.bound = tuple(group.slots for group in agreed.groups)

    @property
    def allowance(self) -> tuple[int, ...]:
        """Slots of each group that warm-up may commit now: of what was agreed on, an equal part for each manager.

        By their number and nothing else, so that ranks need not agree anew when another manager joins.
        """
        if self.settings.budget.manual:
            return self.bound
        return tuple(number // self.shared.members for number in self.bound)

    def forget(self) -> None:
        """The memory is gone for good: no request has slots any more, and none can be had."""
        with self.slots.held():
            for request in self.slots.requests:
                self.slots.free(request)
            self.slots.set_counts((0,) * len(self.slots.counts))
        self.shared.leave(self.path)

    def check_no_requests(self, who: str, state: str, event: str, cure: str) -> None:
        """Raise StateError where requests are alive."""
        if number := len(self.slots.requests):
            raise StateError(f"{who} has {number} requests; {cure} before {event}()", state=state, event=event)
