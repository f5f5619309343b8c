"""What memory is created with: handle type and RDMA flag, found by trial, best first.

Attributes are asked first, because a no is a no, but a yes is tried: a device says that it has fabric handles also
where the process has no IMEX channel (cuMemCreate answers 800), and WSL2 says that RDMA works (cuMemSetAccess answers
999).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from vmmcache import DriverError
from vmmcache.driver import HandleType
from vmmcache.quirks import Quirk
from vmmcache_cuda._api import Api

__all__ = ["Properties", "best_properties", "candidates"]

_BITS: Final[dict[HandleType, int]] = {"posix_fd": 1, "fabric": 8}  # CUmemAllocationHandleType, cuda.h 13.0


_KINDS: Final[tuple[tuple[HandleType | None, str | None], ...]] = (
    ("fabric", "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED"),
    ("posix_fd", "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
    (None, None),
)


@dataclass(frozen=True, slots=True)
class Properties:
    """How memory is created."""

    handle_type: HandleType | None
    rdma: bool

    def __str__(self) -> str:
        return f"{self.handle_type or 'no'} handles{' and RDMA' if self.rdma else ''}"

    @property
    def handle_types(self) -> frozenset[HandleType]:
        """The one handle type, or none."""
        return frozenset() if self.handle_type is None else frozenset({self.handle_type})

    def as_struct(self, api: Api, index: int) -> Any:
        """A ``CUmemAllocationProp``: pinned memory on device `index`."""
        names = api.names
        prop = names.CUmemAllocationProp()
        prop.type = names.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = names.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = index
        bits = _BITS[self.handle_type] if self.handle_type else 0
        prop.requestedHandleTypes = names.CUmemAllocationHandleType(bits)
        prop.allocFlags.gpuDirectRDMACapable = int(self.rdma)
        return prop


def candidates(attribute: Callable[[str], int], quirks: dict[str, Quirk]) -> Iterator[tuple[Properties, str | None]]:
    """What to try, best first, each with why it need not be tried, if so.

    RDMA comes before handle types: a connector can do without sharing memory, but not without reaching it.
    """
    no_rdma = None
    if "rdma_attribute_lies" in quirks:
        no_rdma = quirks["rdma_attribute_lies"].what
    elif not attribute("CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"):
        no_rdma = "the device says that it has no RDMA of such memory"
    for rdma in (True, False):
        for kind, name in _KINDS:
            if kind is not None and "no_exportable" in quirks:
                no_handles: str | None = quirks["no_exportable"].what
            else:
                no_handles = (
                    None if name is None or attribute(name) else f"the device says that it has no {kind} handles"
                )
            yield Properties(kind, rdma), (no_rdma if rdma else None) or no_handles


def best_properties(
    trials: Iterator[tuple[Properties, str | None]], attempt: Callable[[Properties], bool]
) -> tuple[Properties, bool, tuple[str, ...]]:
    """The first that works, whether its memory is reachable by RDMA, and what was lost on the way.

    `attempt` makes a round trip and gives whether the driver says of the memory that a NIC may reach it. The last
    candidate, plain memory, must work: its error is raised.
    """
    losses: dict[str, None] = {}  # one reason may rule out several candidates; it is said once, in order
    for properties, no in trials:
        plain = properties.handle_type is None and not properties.rdma
        if no is not None and not plain:
            losses[no] = None
            continue
        try:
            return properties, attempt(properties), tuple(losses)
        except DriverError as error:
            if plain:
                raise
            losses[f"{properties}: {error}"] = None
    raise AssertionError("plain memory is always a candidate, and either works or raises")
