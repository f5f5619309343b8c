"""One reservation and what is mapped in it. The only code that calls a driver's memory verbs.

Theory of operation
-------------------
What is mapped is kept as a list of *mappings*, sorted by offset: one per allocation, however many granules it spans.
There is no table of granules, so a region of 4 TiB costs what its allocations cost.

Growing fills the holes of the ranges asked for, each maximal hole with one allocation (or with pieces of at most
`chunk` bytes): create, map, grant. If any call fails, all that this growth made goes back.

Giving back is one mechanism, used by shrinking, sleeping, closing and undoing alike: a mapping is taken off the
list and entered in the *ledger* of what the driver is owed, and then the ledger is settled: unmap, release, and
for a reservation free. Where the driver refuses, the rest is settled all the same, what was refused stays in the
ledger, and the next operation tries it first. So nothing is lost from sight: `Region.physical_bytes` and
`Region.allocations` count what is owed, and `Region.close` can be called until it succeeds.
"""

from vmmcache.memory.region._region import Guard, Offer, Region

__all__ = ["Guard", "Offer", "Region"]
