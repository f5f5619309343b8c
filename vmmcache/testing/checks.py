"""What has to hold of a tensor at any time, against the model of it and the books of its driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vmmcache.errors import StaleSegment
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.testing.model import Model
from vmmcache.testing.recording import RecordingDriver

__all__ = ["Peek", "check_backing", "check_books", "check_contents", "check_descriptors", "check_shape", "extents"]

Peek = Callable[[int, int], bytes]
"""The bytes at an address."""


def extents(tensor: ExtensibleTensor, driver: RecordingDriver) -> list[set[int]]:
    """Numbers of the granules of each mapping in the tensor's addresses, in ascending order."""
    base, granule = tensor.base_address, tensor.granule
    end = base + driver.order.reserved.get(base, 0)
    return [
        set(range((start - base) // granule, (start - base + nbytes) // granule))
        for start, (nbytes, _) in sorted(driver.order.mapped.items())
        if base <= start < end
    ]


def check_shape(tensor: ExtensibleTensor, model: Model) -> None:
    """State and sizes are those of the model."""
    assert tensor.state == model.state
    assert tensor.committed == model.visible
    assert tensor.committed_bytes == sum(model.visible)
    assert tensor.segment_sizes == model.sizes
    assert tensor.segment_offsets == model.starts


def check_books(tensor: ExtensibleTensor, driver: RecordingDriver) -> None:
    """What the tensor says it has is what the driver has given and not got back (I3)."""
    order = driver.order
    assert {allocation.handle: allocation.nbytes for allocation in tensor.allocations} == order.allocations
    assert len(tensor.allocations) == len(order.allocations) == order.created - order.released
    assert tensor.physical_bytes == driver.allocated_bytes
    info = driver.memory_info()
    if info.source == "configured":
        # Nobody else's business can get in here, so this is exact.
        assert info.free == info.total - tensor.physical_bytes


def check_backing(tensor: ExtensibleTensor, driver: RecordingDriver, model: Model) -> None:
    """Every committed byte is mapped, with access (I5)."""
    mapped = extents(tensor, driver)
    backed = set().union(*mapped)
    for index, nbytes in enumerate(model.visible):
        needed = model.granules(index, 0, nbytes)
        assert needed <= backed, f"segment {index}: granules {sorted(needed - backed)} are committed and not mapped"
        for granules in mapped:
            if granules & needed:
                assert tensor.base_address + min(granules) * tensor.granule in driver.order.granted


def check_contents(tensor: ExtensibleTensor, model: Model, peek: Peek) -> None:
    """Every byte looked at is the one that was written, or zero if none was (I7)."""
    for index, start in enumerate(model.starts):
        address = tensor.base_address + start
        wrong = {
            position: (found, value)
            for position, value in model.expected(index)
            if (found := peek(address + position, 1)[0]) != value
        }
        assert not wrong, f"segment {index}: at position: (found, expected) {wrong}"


def check_descriptors(tensor: ExtensibleTensor, known: list[RegistrableSegment]) -> None:
    """Descriptors cover exactly what is committed, in order; one from before is stale if anything went away since."""
    found = tensor.registrable()
    assert [each.base for each in found] == sorted(each.base for each in found)
    for index, (start, nbytes) in enumerate(zip(tensor.segment_offsets, tensor.committed, strict=True)):
        reached = 0
        own = [each for each in found if each.segment_index == index]
        for each in own:
            assert each.base == tensor.base_address + start + each.logical_offset
            assert each.logical_offset == reached
            assert each.nbytes > 0
            assert each.allocation_offset + each.nbytes <= each.allocation_nbytes
            assert each.whole == (len(own) == 1)
            assert each.single_allocation
            tensor.check(each)
            reached += each.nbytes
        assert reached == nbytes
    for each in known:
        if each.generation == tensor.generation and tensor.state == "committed":
            tensor.check(each)
            assert each.logical_offset + each.nbytes <= tensor.committed[each.segment_index]
        else:
            with pytest.raises(StaleSegment):
                tensor.check(each)
