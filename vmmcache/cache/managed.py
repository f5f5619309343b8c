"""What there is of a managed cache: its parts, its state, its views."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from vmmcache import metrics
from vmmcache.cache.budget import Mode
from vmmcache.cache.core import Core
from vmmcache.cache.gauging import figures_of
from vmmcache.cache.pools import PoolMap
from vmmcache.cache.report import SizingReport
from vmmcache.cache.slots import Slots
from vmmcache.cache.states import Event, State, next_state
from vmmcache.connectors.registrable import Registrable
from vmmcache.connectors.registration import Registration
from vmmcache.planning import Plan

if TYPE_CHECKING:
    import torch

__all__ = ["GroupCounts", "ManagedCache"]


class GroupCounts(NamedTuple):
    """Slots of one pool group."""

    capacity: int
    """Most that this manager can ever have."""
    committed: int
    """So many have memory now."""
    usable: int
    """So many requests can have: not the null block."""


class ManagedCache:
    """A cache in one of the states of `vmmcache.cache.states`. Operations hold the lock."""

    def __init__(self, core: Core) -> None:
        self._core: Final = core
        self._lock: Final = threading.RLock()
        self._state = State.WARMING
        self._report: SizingReport | None = None
        metrics.register(self._figures)

    def __repr__(self) -> str:
        return f"<KVCacheManager {self._core.settings.tag!r} on {self.device}, {self.mode}, {self.state}>"

    @property
    def mode(self) -> Mode:
        """``"measured"`` or ``"estimated"``."""
        return self._core.path.mode

    @property
    def fallback_reason(self) -> str | None:
        """Why it is the estimated path; None where it is not."""
        return self._core.fallback_reason

    @property
    def state(self) -> str:
        """``"warming"``, ``"ready"``, ``"asleep"`` or ``"closed"``; see `vmmcache.cache.states`."""
        return self._state.value

    @property
    def device(self) -> str:
        """The device string."""
        return self._core.path.device

    @property
    def slots(self) -> Slots:
        """Slots of requests; the same object for life. While the manager sleeps, none can be had."""
        return self._core.slots

    @property
    def plan(self) -> Plan:
        """What was planned: for the reserved capacity while warming up, for what is committed afterwards."""
        return self._core.path.plan

    @property
    def report(self) -> SizingReport | None:
        """What `finalize` found and did; None before."""
        return self._report

    @property
    def memory(self) -> Registrable:
        """What connectors of the engine's own may lease and register."""
        return self._core.path.backing.memory

    @property
    def pools(self) -> PoolMap:
        """Where slots are: slot ``n`` of a group begins ``n`` strides into each of the group's segments."""
        return self._core.path.pools

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """One for each of `connectors`, in that order; none before `finalize`.

        Their `connector` makes cards for peers, and moves blocks. Releasing, restoring and closing is the manager's.
        Those of one connector may be others after a `resize` that had to register anew.
        """
        return self._core.registrations.held

    @property
    def capacity(self) -> tuple[int, ...]:
        """Most slots of each pool group that this manager can ever have."""
        return self._core.path.most()

    @property
    def committed(self) -> tuple[int, ...]:
        """Slots of each pool group that have memory now; none while asleep."""
        return self._core.path.backing.slots

    @property
    def groups(self) -> tuple[GroupCounts, ...]:
        """Slots of each pool group: for how many there are addresses, memory, and takers (S13)."""
        with self._lock:
            return tuple(map(GroupCounts, self.capacity, self.committed, self.slots.usable))

    @property
    def addresses_stay(self) -> bool:
        """Whether views keep their addresses from now on, so that graphs may be captured.

        True from the start on the measured path, whatever happens. On the estimated path from `finalize` on, but
        for `resize`, and `sleep` with `wake`, which move them there.
        """
        return self._core.path.backing.addresses_stay or self._state is not State.WARMING

    def views(self) -> dict[str, dict[str, torch.Tensor]]:
        """Every buffer of every layer: layer name -> role -> uint8 tensor ``[slots, ..., bytes]``.

        While warming up on the measured path over the whole capacity: touch only slots that are committed
        (`vmmcache.wrap_slots`). Afterwards, and on the estimated path always, over exactly what is committed. On the
        measured path each has the same address at every time (I1).

        Raises
        ------
        StateError
            The manager is asleep or closed.
        DriverUnavailable
            torch is missing or cannot make a tensor on the device.
        """
        with self._lock:
            self._next(Event.VIEWS)
            return self._core.path.backing.views(exact=self._state is State.READY)

    # ----------------------------------------------------------------------------------------------------------------

    def _figures(self) -> metrics.CacheMetrics | None:
        # Without the lock of the manager, which is held as long as an operation lasts.
        return None if self._state is State.CLOSED else figures_of(self._core, self.state)

    def _next(self, event: Event) -> State:
        return next_state(self._state, event, who=self)
