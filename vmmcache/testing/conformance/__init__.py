"""The contract of a driver, one test per promise.

In a test file of yours::

    from vmmcache.testing import DriverConformance

    class TestMusa(DriverConformance):
        @pytest.fixture
        def driver(self):
            return open_musa(0)

and pytest runs all of them against your device. Where your platform differs, say so with the attributes of `Suite`;
where you can look at memory without the driver's help, override `peek` and `poke`, or a driver that is wrong twice in
the same way will pass.
"""

from __future__ import annotations

from vmmcache.testing.conformance._addresses import Addresses
from vmmcache.testing.conformance._contents import Contents
from vmmcache.testing.conformance._identity import Identity
from vmmcache.testing.conformance._mappings import Mappings
from vmmcache.testing.conformance._memory import Memory
from vmmcache.testing.conformance._processes import Processes
from vmmcache.testing.conformance._runs import Runs
from vmmcache.testing.conformance._sharing import Sharing
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench

__all__ = ["DriverConformance", "Suite", "Workbench"]


class DriverConformance(Identity, Addresses, Memory, Mappings, Runs, Contents, Sharing, Processes):
    """Subclass it, give it a fixture `driver`, and every promise of `VmmDriver` is a test of your driver."""
