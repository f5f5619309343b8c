"""Rules: somebody holds what a segment has, and lets go of it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from vmmcache.connectors.leases import RegistrationLease
from vmmcache.errors import StateError
from vmmcache.memory.states import Event
from vmmcache.testing.stateful._machine import SEGMENT, Held, Machine, allowed


class Leases(Machine):
    """What connectors do; what they thereby forbid is in `Machine.blockers`."""

    @precondition(allowed(Event.LEASE))
    @rule(index=SEGMENT, answer=st.sampled_from([None, "yes", "no"]))
    def lease(self, index: int, answer: str | None) -> None:
        """Somebody holds what a segment has now."""
        self.step()
        callback = {None: None, "yes": lambda lease: lease.release(), "no": _will_not}[answer]
        self.owners += 1
        owner = f"owner {self.owners}"
        if not self.model.visible[index]:
            with pytest.raises(StateError):
                self.tensor.lease(index, owner, callback)
            return
        lease = self.tensor.lease(index, owner, callback)
        assert (lease.address, lease.nbytes) == (self.base + self.model.starts[index], self.model.visible[index])
        self.leases.append(Held(lease, self.model.granules(index, 0, lease.nbytes), answer))

    @precondition(lambda machine: machine.leases)
    @rule(choice=st.integers(0, 99))
    def let_go(self, choice: int) -> None:
        """Somebody does not hold it any more; to say so twice does nothing."""
        self.step()
        held = self.leases.pop(choice % len(self.leases))
        held.lease.release()
        held.lease.release()
        assert not held.lease.valid


def _will_not(lease: RegistrationLease) -> None:
    raise RuntimeError(f"{lease.owner} needs it")
