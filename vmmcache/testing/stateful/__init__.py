"""A machine that does to an `ExtensibleTensor` whatever may be done, in any order, and compares it with a `Model`.

Subclass it and say how to open a driver; pytest runs ``Machine.TestCase``::

    class Machine(TensorMachine):
        def open_driver(self):
            return open_musa(0)

    TestMachine = Machine.TestCase

With `faults`, calls of the driver are refused meanwhile, also while a failed operation is being undone.

What may be done in which state is read from `vmmcache.memory.states.TRANSITIONS`; everything that is not in that table
is tried, too, and has to be refused without a call of the driver.
"""

from __future__ import annotations

from hypothesis.stateful import invariant

from vmmcache.testing import checks
from vmmcache.testing.stateful._contents import Contents
from vmmcache.testing.stateful._leases import Leases
from vmmcache.testing.stateful._life import Life
from vmmcache.testing.stateful._refusals import Refusals

__all__ = ["TensorMachine"]


class TensorMachine(Life, Contents, Leases, Refusals):
    """Rules on one tensor after the other, all over one driver."""

    @invariant()
    def all_is_well(self) -> None:
        """After every rule."""
        if not self.made:
            return
        tensor, driver = self.tensor, self.driver
        assert tensor.base_address == self.base, "I1"
        assert tensor.generation >= self.generation
        self.generation = tensor.generation
        checks.check_shape(tensor, self.model)
        checks.check_books(tensor, driver)
        checks.check_backing(tensor, driver, self.model)
        checks.check_contents(tensor, self.model, self.peek)
        if self.model.state != "closed":
            checks.check_descriptors(tensor, self.known)
        if not self.faults:
            driver.check_granted()
            assert driver.mapped_bytes == tensor.physical_bytes
            assert len(driver.order.reserved) == 1
        assert all(held.lease.valid for held in self.leases)
        self._check_open_descriptors()

    def teardown(self) -> None:
        """At the end nothing is left (I3)."""
        if not self.made:
            return
        self.alive.clear()
        for held in self.leases:
            held.lease.release()
        self.tensor.close()
        self.driver.check_clean()
        self._check_open_descriptors()
        type(self).tidy = True

    def _check_open_descriptors(self) -> None:
        held = len(self.tensor.allocations) * self.driver.fds_per_allocation
        assert self.open_descriptors() == self.descriptors + held
