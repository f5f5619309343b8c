"""Registration: some memory, known to one connector. Leases first, the library last; and the other way round.

Sleeping and waking
-------------------
Memory may only be unmapped when nobody reaches it any more, and nothing below vmmcache checks that. `release` does, in
this order: no transfer is on its way; peers know that their addresses are void; the library has deregistered; exported
descriptors are closed; then the leases go, and the memory may. `restore` comes after the memory is back: leases, the
library, at the same addresses and lengths, and then peers may be told anew. A failure stops it where it was, and the
same call goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from vmmcache.closing import ClosedOnExit
from vmmcache.connectors.base import Connector
from vmmcache.connectors.layouts import check_layout
from vmmcache.connectors.leases import RegistrationLease
from vmmcache.connectors.registrable import Registrable
from vmmcache.connectors.registration_set import RegistrationSet
from vmmcache.errors import ConfigError, StateError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.undo import UndoStack

__all__ = ["Registration"]


class Registration(ClosedOnExit):
    """All committed memory of `memory`, leased, and registered with `connector`.

    While it lasts, the memory may grow, which `refresh` registers, and every operation that would take a registered
    byte away is refused (LeaseError), or with ``revoke=True`` does `release` first (I9, C3). Also a context manager.

    Parameters
    ----------
    memory : Registrable
        An `ExtensibleTensor`, or a cache's memory.
    connector : Connector
        One connector can have registrations of several memories, a memory registrations of several connectors.
    strides : int or sequence of int, optional
        Bytes of a block, for all segments or for each: then no block may lie in two registrations.
    layout : str, optional
        The engine's name of how it lays a cache out over the memory, such as ``"LBNHC"``; only those whose blocks are
        whole can be registered. Not needed for a `KVCacheManager`'s memory, whose arrangements all are.
    label : str
        Which memory of this process it is, for peers.

    Raises
    ------
    AlignmentError, ConfigError
        The memory is not as the connector needs it; names connector and rule. Its library has seen none of it.
    StateError
        The memory is asleep or closed.
    ConnectorError
        The library refused.
    """

    def __init__(
        self,
        memory: Registrable,
        connector: Connector,
        *,
        strides: int | Sequence[int] | None = None,
        layout: str | None = None,
        label: str = "kv_cache",
    ) -> None:
        if not isinstance(memory, Registrable):
            raise ConfigError("memory", memory, "must be an ExtensibleTensor or something else that is Registrable")
        if not isinstance(connector, Connector):
            raise ConfigError("connector", connector, "must be a Connector; open_connector() opens one by its name")
        if layout is not None:
            check_layout(layout, connector.name)
        if connector.needs.exact_blocks and strides is None:
            raise ConfigError("strides", None, f"{connector.name} registers whole blocks (exact_blocks); how large?")
        if type(label) is not str or not label:
            raise ConfigError("label", label, "must be a name that peers can tell memories apart by")
        self.memory: Final = memory
        self.connector: Final = connector
        self.label: Final = label
        self._strides = strides
        self._lock = threading.RLock()
        self._state = "released"
        self._parts = RegistrationSet(())
        self._leases: dict[int, RegistrationLease] = {}
        self._add(self._described())

    def __repr__(self) -> str:
        return (
            f"<Registration of {self._parts.nbytes} bytes in {len(self._parts)} parts on {self.memory.device} "
            f"with {self.connector.name}, {self._state}>"
        )

    @property
    def state(self) -> str:
        """``"registered"``, ``"released"``, ``"closed"``; ``"unsettled"`` where a library refused in the middle."""
        return self._state

    @property
    def parts(self) -> RegistrationSet:
        """What is registered; while released, what `restore` registers again."""
        return self._parts

    def address(self, segment: int, offset: int, nbytes: int) -> int:
        """Address of registered bytes, for a transfer.

        Raises
        ------
        StateError
            Nothing is registered now.
        ConfigError
            Not all of them are registered.
        AlignmentError
            They lie in two registrations.
        """
        if self._state != "registered":
            raise self._wrong("address", "restore() first")
        return self._parts.address(segment, offset, nbytes)

    def refresh(self) -> tuple[RegistrableSegment, ...]:
        """Register what growth has appended. What was registered stays, and so do transfers that are on their way.

        Returns
        -------
        tuple of RegistrableSegment
            What is new: what peers need to be told of.

        Raises
        ------
        StateError
            Nothing is registered now.
        AlignmentError, ConfigError, ConnectorError
            As for a new registration. Nothing has changed; where the library refused to undo as well, the
            registration is ``"unsettled"``, and `release` tries again.
        """
        with self._lock:
            if self._state != "registered":
                raise self._wrong("refresh", "restore() first, or make a new one")
            fresh = self._described().beyond(self._parts)
            if fresh:
                self._add(fresh)
            return fresh[:]

    def release(self) -> None:
        """Deregister everything and give the leases back, in the order above. The second time does nothing.

        Raises
        ------
        StateError
            A transfer does not end. Nothing has changed.
        ConnectorError
            The library refused in the middle. The leases stay, so the memory does; calling again goes on.
        """
        with self._lock:
            if self._state in ("released", "closed"):
                return
            with UndoStack() as undo:
                undo.callback(self._look)
                self.connector.withdraw(self._parts)
                undo.commit()
            self._state = "released"
            self._drop_leases()

    def restore(self) -> None:
        """Register again what `release` gave up, now that the memory is back. Peers have to be told anew.

        Raises
        ------
        StateError
            There was no `release`, or the memory is still asleep.
        StaleSegment
            It is not back at the same addresses with the same lengths. Close this, and make a new registration.
        ConnectorError
            The library refused. It is still released, and a later call may succeed.
        """
        with self._lock:
            if self._state != "released":
                raise self._wrong("restore", "make a new one" if self._state == "closed" else "release() first")
            earlier = self._parts
            again = self._described().same_as(earlier)
            self._parts = RegistrationSet(())
            with UndoStack() as undo:
                undo.callback(self._forget, earlier)
                self._add(again)
                undo.commit()

    def close(self) -> None:
        """`release`, for good."""
        with self._lock:
            self.release()
            self._state = "closed"

    # ----------------------------------------------------------------------------------------------------------------

    def _bases(self) -> set[int]:
        """Addresses of all that the connector has registered, this memory's or not."""
        return {each.base for each in self.connector.registered}

    def _described(self) -> RegistrationSet:
        return RegistrationSet.of(self.memory, strides=self._strides)

    def _add(self, fresh: RegistrationSet) -> None:
        """Lease and register `fresh` beside what is there, or nothing."""
        earlier, before = self._parts, self._bases()
        leases: dict[int, RegistrationLease] = {}
        with UndoStack() as undo:
            undo.callback(lambda: self._settle(earlier, fresh, leases, before))
            for index in fresh.segments:
                leases[index] = self.memory.lease(index, self.connector.name, self._revoked)
            for each in fresh:
                # The lease is taken: what is described rightly now stays so.
                self.memory.check(each)
            self.connector.register(fresh)
            undo.commit()
        self._parts = _together(earlier, fresh)
        self._state = "registered"
        self._exchange(leases)

    def _settle(
        self, earlier: RegistrationSet, fresh: RegistrationSet, leases: dict[int, RegistrationLease], before: set[int]
    ) -> None:
        """After a failure: give back what was taken, but for what the library did not let go of."""
        stuck = self._bases() - before
        left = RegistrationSet(each for each in fresh if each.base in stuck)
        for index in set(leases) - set(left.segments):
            leases.pop(index).release()
        if left:
            self._parts = _together(earlier, left)
            self._state = "unsettled"
        self._exchange(leases)

    def _exchange(self, leases: dict[int, RegistrationLease]) -> None:
        """A new lease covers all of its segment, so the old one of that segment goes."""
        for index, lease in leases.items():
            old, self._leases[index] = self._leases.get(index), lease
            if old is not None:
                old.release()

    def _look(self) -> None:
        """A release has failed: was anything deregistered?"""
        left = self._bases()
        if not all(each.base in left for each in self._parts):
            self._state = "unsettled"

    def _drop_leases(self) -> None:
        while self._leases:
            _, lease = self._leases.popitem()
            lease.release()

    def _forget(self, earlier: RegistrationSet) -> None:
        """A restore has failed; if nothing of it is left, it is released as it was."""
        if self._state == "released":
            self._parts = earlier

    def _revoked(self, lease: RegistrationLease) -> None:
        """The memory is to go (``revoke=True``): all of it is deregistered, because peers know it as one."""
        with self._lock:
            self.release()

    def _wrong(self, event: str, cure: str) -> StateError:
        return StateError(f"{self!r} does not allow {event}(); {cure}", state=self._state, event=event)


def _together(earlier: RegistrationSet, fresh: RegistrationSet) -> RegistrationSet:
    return RegistrationSet(sorted((*earlier, *fresh), key=lambda each: each.base)) if len(earlier) else fresh
