"""A tensor wakes with the very allocations that it had, however it came by them (I10)."""

from __future__ import annotations

from tests.fine_host import FINE, FineHostDriver
from vmmcache import ExtensibleTensor


def test_one_allocation_that_a_rebuild_made_wakes_as_one_whatever_the_chunk() -> None:
    with ExtensibleTensor(4 * FINE, FineHostDriver(), chunk=FINE) as tensor:
        tensor.commit(4 * FINE, defragment=True)
        tensor.release_physical()
        tensor.restore()
        assert [allocation.nbytes for allocation in tensor.allocations] == [4 * FINE]
