"""KVCacheManager: the one object that an engine imports."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from vmmcache.cache.budget import MemoryBudget
from vmmcache.cache.constructing import construct
from vmmcache.cache.noting import noting
from vmmcache.cache.ranks import Ranks
from vmmcache.cache.requota import resize
from vmmcache.cache.settings import checked
from vmmcache.cache.shared import SharedDevice
from vmmcache.cache.sleeping import Slept, fall_asleep
from vmmcache.cache.states import Event, State
from vmmcache.cache.waking import wake_up
from vmmcache.cache.warming import WarmingCache
from vmmcache.closing import ClosedOnExit
from vmmcache.connectors.base import Connector
from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError
from vmmcache.memory.atlas import publish as publish_map
from vmmcache.memory.undo import UndoStack
from vmmcache.planning import Batch, CacheLayout, Plan
from vmmcache.planning.layout import Arrangement
from vmmcache.planning.warmup import EngineLimits
from vmmcache.units import MIB, format_bytes

__all__ = ["CHUNK", "KVCacheManager"]

_log: Final = logging.getLogger(__name__)

CHUNK: Final = 128 * MIB
"""A thousand handles for a large device; less than the margin, so that one can be copied when a cache shrinks."""


class KVCacheManager(ClosedOnExit, WarmingCache):
    """A KV cache whose size is decided after warm-up, by what is left.

    Where virtual memory management works, addresses for the largest cache are there from the start: the engine takes
    views, captures graphs and warms up on a little memory, and `finalize` measures and commits the rest, at the same
    addresses. Where it does not, the same calls lead through a temporary pool and an estimate. The engine's code is the
    same; only `addresses_stay` says when graphs may be captured.

    Methods may be called from any thread; each is done as a whole before another begins. `slots` has a lock of its own.
    With `ranks`, every rank calls the same methods in the same order, and they succeed or fail together (I14).

    Parameters
    ----------
    layout : CacheLayout
        Layers of this rank.
    device : str or VmmDriver
        ``"cuda:0"``, ``"host"``, ..., or a driver that is open already.
    budget : MemoryBudget, optional
        How much memory the cache may take; by default all that is left.
    constraints : iterable of Batch
        Batches that always have to fit (I13). Requests marked FIT_TO_QUOTA shrink to what there is.
    warmup_constraints : iterable of Batch, optional
        Batches that warm-up runs; by default those that follow from `limits`.
    ranks : Ranks, optional
        Agreement with other ranks; by default there are none. Stays the caller's to close.
    connectors : iterable of str or Connector
        Who registers the memory, at the end of `finalize`.
    vmm : bool, optional
        True: raise DriverUnavailable where virtual memory management does not work. False: do without. By default it is
        used where a probe says that it works, on all ranks, and a warning is logged where not.
    limits : EngineLimits, optional
        What the engine will run at most.
    typical_step, pool_ratio, max_util_for_resume, scratch_rewind, sustained, arrangement
        As for `vmmcache.planning.plan`.
    null_block : bool, default False
        Keep slot 0 of every group from requests.
    tag : str, default "kv_cache"
        By which `sleep` and `wake` find this memory.
    shared : SharedDevice, optional
        The device, shared with other managers of this process. Its budget counts; `budget` may only be a size.
    free_at_start : int, optional
        Bytes that were free before the engine took any, so that weights count as used by it. By default those that are
        free now. Matters where the budget's utilization is below 1.

    chunk : int, default 128 MiB
        Most bytes of an allocation, because it goes back only as a whole. Where connectors register, each segment is
        one allocation whatever this says.
    publish : bool, default False
        Let ``vmmcache map PID`` see the address space of this process: `vmmcache.publish`, with its errors.

    Raises
    ------
    ConfigError
        An argument is wrong.
    DriverUnavailable
        ``vmm=True``, and a rank cannot.
    ConnectorUnavailable
        No connector of a name in `connectors` is installed.
    PlanError
        The constraints could not be met on a device of which nothing is in use.
    RankError
        A rank is gone, or could not do its part.
    """

    def __init__(
        self,
        layout: CacheLayout,
        device: str | VmmDriver = "host",
        budget: MemoryBudget | None = None,
        constraints: Iterable[Batch] = (),
        warmup_constraints: Iterable[Batch] | None = None,
        ranks: Ranks | None = None,
        connectors: Iterable[str | Connector] = (),
        vmm: bool | None = None,
        *,
        limits: EngineLimits | None = None,
        typical_step: Batch | None = None,
        pool_ratio: Sequence[float] | None = None,
        max_util_for_resume: float = 0.97,
        scratch_rewind: int | None = None,
        sustained: bool = False,
        arrangement: Arrangement = "block-major",
        null_block: bool = False,
        tag: str = "kv_cache",
        shared: SharedDevice | None = None,
        free_at_start: int | None = None,
        chunk: int = CHUNK,
        publish: bool = False,
    ) -> None:
        settings = checked(
            layout,
            device,
            budget,
            constraints,
            warmup_constraints,
            ranks,
            connectors,
            vmm,
            limits,
            typical_step,
            pool_ratio,
            max_util_for_resume,
            scratch_rewind,
            sustained,
            arrangement,
            null_block,
            tag,
            shared,
            free_at_start,
            chunk,
        )
        if publish:
            publish_map()
        super().__init__(construct(settings, limits, free_at_start))
        _log.info("%r: %s", self, self.fallback_reason or "addresses stay from now on")

    # Serving --------------------------------------------------------------------------------------------------------

    def resize(self, quota: int) -> Plan:
        """Give the cache another quota while it serves: more or less, within the floors and the capacity (S15).

        Slots that go have to be free or belong to suspended requests, whose contents move. Take `views` again
        afterwards: they are over what is committed then, at the same addresses on the measured path. Where
        slots go there, the allocation in which a segment then ends is copied to a smaller one; if there is no room for
        that, it stays as it is, is counted, and a warning is logged. With connectors it is the whole segment that is
        copied, and without room the resize is refused.

        Parameters
        ----------
        quota : int
            Bytes.

        Raises
        ------
        QuotaError
            It is below the floors (I12).
        ConfigError
            It is beyond the capacity.
        StateError
            Active requests are in the way, or the manager is not ready.
        LeaseError
            A connector of the engine's own holds what would go.
        OutOfDeviceMemory, DriverError, RankError
            Refused. After any error the cache is as it was; contents of suspended requests may have been evicted. Where
            a rank cannot have its memory again, all hand out the slots that each of them has.
        """
        with self._lock:
            self._next(Event.RESIZE)
            plan = resize(self._core, quota)
            _log.info("%r: resized to %s slots", self, list(self.committed))
            return plan

    def sleep(self, tags: Collection[str] | None = None, backup: bool = False, revoke: bool = False) -> Slept | None:
        """Give all memory back; addresses and views stay. Before the engine suspends its own allocator.

        Connectors deregister, the device finishes, memory goes, and that it came back is checked: where not, a warning
        with the numbers is logged. Contents of suspended requests are lost, which `CacheRequest.lost` then says, unless
        `backup`.

        Parameters
        ----------
        tags : collection of str, optional
            Do nothing unless the manager's tag is among them.
        backup : bool
            Copy the contents of suspended requests to host memory first.
        revoke : bool
            Suspend requests that are active, and make owners of leases let go.

        Returns
        -------
        Slept or None
            What came back; None where the tags are others'.

        Raises
        ------
        StateError
            Requests are not suspended, or the manager is not ready.
        LeaseError
            A connector of the engine's own holds memory.
        ConnectorError, RankError
            A connector, or a rank, refused. Nothing has changed, but that `revoke` has suspended requests.
        DriverError
            The driver refused to take memory back. The manager is asleep all the same; calling again, on every rank,
            finishes. Or it refused in another way: it is awake, and so are the other ranks, which all raise (I14), but
            for one that could not wake again; the errors say what each is.
        """
        with self._lock:
            if not self._tagged(tags):
                return None
            after = self._next(Event.SLEEP)
            try:
                slept = fall_asleep(self._core, repr(self), backup=backup, revoke=revoke)
            finally:
                # Awake: it could not, or another rank could not, and this one woke again.
                self._state = after if self._core.asleep_counts else State.READY
            _log.info("%r: %s given back", self, format_bytes(slept.released))
            return slept

    def wake(self, tags: Collection[str] | None = None) -> bool:
        """Get the memory back, zeroed, at the same addresses; connectors register again.

        Parameters
        ----------
        tags : collection of str, optional
            Do nothing unless the manager's tag is among them.

        Returns
        -------
        bool
            False where the tags are others'.

        Raises
        ------
        StateError
            The manager is not asleep.
        OutOfDeviceMemory, DriverError, ConnectorError, RankError
            Refused. It is still asleep, and a later call may succeed.
        """
        with self._lock:
            if not self._tagged(tags):
                return False
            after = self._next(Event.WAKE)
            try:
                wake_up(self._core)
            finally:
                if not self._core.asleep_counts:
                    self._state = after
            _log.info("%r: awake with %s slots", self, list(self.committed))
            return True

    def close(self, *, revoke: bool = False) -> None:
        """Give everything back: requests, registrations, memory, addresses. The second time does nothing.

        Raises
        ------
        StateError
            Views are alive; says how many.
        LeaseError
            A connector of the engine's own holds memory, and `revoke` is False.
        ConnectorError
            A connector refused to let go. Nothing has changed.
        DriverError
            The driver refused to take something back. The manager is closed all the same; calling again goes on.
        """
        with self._lock:
            after = self._next(Event.CLOSE)
            core = self._core
            backing = core.path.backing
            with UndoStack() as undo:
                undo.push(noting(core.follow))
                if self._state is State.READY:
                    undo.push(noting(core.registrations.restore))
                core.registrations.release()
                try:
                    backing.close(revoke=revoke)
                finally:
                    # Also where the driver refused to take something back: the rest is gone.
                    if backing.state == "closed":
                        self._state = after
                        core.forget()
                        undo.commit()
            core.registrations.close()
            _log.info("%r", self)

    # ----------------------------------------------------------------------------------------------------------------

    def _tagged(self, tags: Collection[str] | None) -> bool:
        if isinstance(tags, str):
            raise ConfigError("tags", tags, "must be several names; write (tag,) for one")
        return tags is None or self._core.settings.tag in tags
