"""What memory is created with: handle type and RDMA flag, found by trial, best first."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from vmmcache import DriverError
from vmmcache.driver import HandleType

__all__ = ["Properties", "best_properties", "candidates"]

_BITS: Final[dict[HandleType, int]] = {"posix_fd": 1, "fabric": 8}  # hipMemAllocationHandleType
_PINNED: Final = 1  # hipMemAllocationTypePinned
_DEVICE: Final = 1  # hipMemLocationTypeDevice


class AllocationProp(ctypes.Structure):
    """``hipMemAllocationProp``, 32 bytes: the bindings cannot set ``requestedHandleTypes``, a member of a union."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("requested_handle_types", ctypes.c_int32),
        ("location_type", ctypes.c_int32),
        ("location_id", ctypes.c_int32),
        ("win32_handle_meta_data", ctypes.c_void_p),
        ("compression_type", ctypes.c_uint8),
        ("gpu_direct_rdma_capable", ctypes.c_uint8),
        ("usage", ctypes.c_uint16),
        ("reserved", ctypes.c_uint8 * 4),
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
        """The one handle type, or none: HIP takes no combination."""
        return frozenset() if self.handle_type is None else frozenset({self.handle_type})

    def as_struct(self, index: int) -> AllocationProp:
        """Pinned memory on device `index`."""
        return AllocationProp(
            type=_PINNED,
            requested_handle_types=_BITS[self.handle_type] if self.handle_type else 0,
            location_type=_DEVICE,
            location_id=index,
            gpu_direct_rdma_capable=int(self.rdma),
        )


def candidates(attribute: Callable[[str], int]) -> Iterator[tuple[Properties, str | None]]:
    """What to try, best first, each with why it need not be tried, if so. An older runtime knows no such attribute."""
    no_rdma = no_fabric = None
    if not attribute("hipDeviceAttributeGPUDirectRDMAWithHipVMMSupported"):
        no_rdma = "the device says that it has no RDMA of such memory"
    if not attribute("hipDeviceAttributeHandleTypeFabricSupported"):
        no_fabric = "the device says that it has no fabric handles"
    for rdma in (True, False):
        yield Properties("fabric", rdma), (no_rdma if rdma else None) or no_fabric
        yield Properties("posix_fd", rdma), no_rdma if rdma else None
        yield Properties(None, rdma), no_rdma if rdma else None


def best_properties(
    trials: Iterator[tuple[Properties, str | None]], attempt: Callable[[Properties], bool | None]
) -> tuple[Properties, bool | None, tuple[str, ...]]:
    """The first that works, whether its memory is reachable by RDMA, and what was lost on the way.

    The last candidate, plain memory, must work: its error is raised.
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
