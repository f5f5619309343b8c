"""What a connector is told about a piece of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vmmcache.driver import HandleType

__all__ = ["RegistrableSegment"]


@dataclass(frozen=True, slots=True)
class RegistrableSegment:
    """Committed bytes that lie in one physical allocation. All sizes and offsets are bytes."""

    base: int
    """Address of the first byte."""
    nbytes: int
    device_type: str
    """``"cpu"``, ``"cuda"``, ``"rocm"``, or a stranger's own word."""
    device_id: int
    mem_type: Literal["DRAM", "VRAM"]
    segment_index: int
    logical_offset: int
    """Where the first byte is, counted from the first byte of its segment."""
    allocation_id: int
    """Unique in this process and never used again."""
    allocation_offset: int
    """Where the first byte is in its allocation."""
    allocation_nbytes: int
    """Bytes of the whole allocation."""
    single_allocation: bool
    """Whether all bytes lie in that one allocation. True for all that `ExtensibleTensor.registrable` gives."""
    whole: bool
    """Whether this is all that its segment has committed."""
    aligned: bool
    """Whether it starts and ends on a granule."""
    generation: int
    """The tensor's generation; `ExtensibleTensor.check` compares it."""
    rdma_capable: bool | None
    """As read back from the driver; None where it cannot say."""
    handle_types: frozenset[HandleType]
    """Kinds of shareable handle that the allocation has."""
