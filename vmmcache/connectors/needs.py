"""What a connector needs of the memory that it registers: data, checked before its library sees an address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vmmcache.driver import HandleType
from vmmcache.errors import AlignmentError, ConfigError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.units import as_count, format_bytes

__all__ = ["ConnectorNeeds"]


@dataclass(frozen=True, slots=True)
class ConnectorNeeds:
    """Rules for registered memory. The defaults ask for what every `RegistrableSegment` is anyway.

    No library checks these by itself: the operating system forgives what a NIC does not, and a GPU's library exports
    one allocation where many were meant. What is registered always is committed, and each entry lies in one allocation.

    Raises
    ------
    ConfigError
        A field is no whole number, or a kind of memory that there is not.
    """

    alignment: int = 1
    """Bytes; address and length of every entry are multiples of it."""
    on_granules: bool = False
    """Every entry starts and ends on a granule of its device."""
    whole_segments: bool = False
    """Each segment in one entry: for connectors that know a cache by one address and one length."""
    exact_blocks: bool = False
    """Each segment is a whole number of blocks, no byte more, so the stride of every segment has to be said."""
    single_storage: bool = False
    """All entries in one allocation: for connectors that take the first cache's memory for everybody's."""
    largest_region: int | None = None
    """Most bytes of an entry."""
    rdma: bool = False
    """Refuse memory of which the driver says that no NIC reaches it. Where a driver cannot say, nothing is refused."""
    handle_types: frozenset[HandleType] = frozenset()
    """The allocation has a shareable handle of at least one of these kinds; empty: none is needed."""
    one_device: bool = False
    """Everything that one connector registers is of one kind, on one device."""
    memory: frozenset[str] = frozenset({"DRAM", "VRAM"})
    """Kinds of memory that can be registered."""

    def __post_init__(self) -> None:
        as_count("ConnectorNeeds.alignment", self.alignment, minimum=1)
        if self.largest_region is not None:
            as_count("ConnectorNeeds.largest_region", self.largest_region, minimum=1)
        if not self.memory or not self.memory <= {"DRAM", "VRAM"}:
            raise ConfigError("ConnectorNeeds.memory", self.memory, "some of DRAM and VRAM")

    def rules(self) -> Iterator[tuple[str, str]]:
        """The rules that go beyond the defaults: the field, and what it asks for, in words."""
        if self.alignment > 1:
            yield "alignment", f"addresses and lengths are multiples of {format_bytes(self.alignment)}"
        if self.on_granules:
            yield "on_granules", "every entry starts and ends on a granule"
        if self.whole_segments:
            yield "whole_segments", "each segment lies in one allocation, and does not grow while it is registered"
        if self.exact_blocks:
            yield "exact_blocks", "each segment is a whole number of blocks"
        if self.single_storage:
            yield "single_storage", "everything lies in one allocation"
        if self.largest_region is not None:
            yield "largest_region", f"no entry has more than {format_bytes(self.largest_region)}"
        if self.rdma:
            yield "rdma", "a NIC reaches the memory, as far as the driver can say"
        if self.handle_types:
            yield "handle_types", f"allocations have a handle of kind {' or '.join(sorted(self.handle_types))}"
        if self.one_device:
            yield "one_device", "all memory of one connector is on one device"
        if len(self.memory) == 1:
            yield "memory", f"{next(iter(self.memory))} only"

    def check(
        self, segments: Sequence[RegistrableSegment], connector: str, *, beside: Sequence[RegistrableSegment] = ()
    ) -> None:
        """See that `segments` can be registered by `connector`, which has registered those `beside` already.

        Raises
        ------
        AlignmentError
            A size or an address is not what it has to be; names the connector, the rule and the entry.
        ConfigError
            The memory is of the wrong kind.
        """
        for segment in segments:
            if (problem := self._problem(segment)) is not None:
                raise AlignmentError(f"{connector} cannot register {_name(segment)}: {problem}")
            if (wrong := self._wrong_kind(segment)) is not None:
                raise ConfigError(f"{connector}.needs.{wrong[0]}", segment.base, f"{_name(segment)} {wrong[1]}")
        devices = {(each.mem_type, each.device_id) for each in (*beside, *segments)} if self.one_device else ()
        if len(devices) > 1:
            places = ", ".join(f"{kind} {number}" for kind, number in sorted(devices))
            raise ConfigError(f"{connector}.needs.one_device", places, "open another connector for each device")
        if self.single_storage and len(found := {each.allocation_id for each in (*beside, *segments)}) > 1:
            raise AlignmentError(
                f"{connector} cannot register {len(found)} allocations, it needs everything in one (single_storage). "
                "Lay the cache out in one segment, block by block, and commit with defragment=True"
            )

    def _problem(self, segment: RegistrableSegment) -> str | None:
        again = "Commit with defragment=True before registering; release() and register anew after growth"
        if self.whole_segments and not segment.whole:
            return f"it is a part, and {segment.nbytes} bytes are not all of its segment (whole_segments). {again}"
        if self.on_granules and not segment.aligned:
            return "it does not start and end on a granule (on_granules). Commit multiples of the granule"
        if self.alignment > 1 and (segment.base % self.alignment or segment.nbytes % self.alignment):
            return (
                f"address and length have to be multiples of {self.alignment} bytes (alignment). "
                "Commit multiples of it, in segments that start on one"
            )
        if self.largest_region is not None and segment.nbytes > self.largest_region:
            return (
                f"that is more than {self.largest_region} bytes (largest_region). "
                "Make the tensor with a chunk of at most that"
            )
        return None

    def _wrong_kind(self, segment: RegistrableSegment) -> tuple[str, str] | None:
        if segment.mem_type not in self.memory:
            return "memory", f"is {segment.mem_type}; this connector takes {' and '.join(sorted(self.memory))}"
        if self.rdma and segment.rdma_capable is False:
            return "rdma", "is out of a NIC's reach, the driver says; `vmmcache probe` says why"
        if self.handle_types and not self.handle_types & segment.handle_types:
            wanted, there = (", ".join(sorted(kinds)) or "none" for kinds in (self.handle_types, segment.handle_types))
            return "handle_types", f"has handles of kind {there}, and one of {wanted} is needed; see `vmmcache probe`"
        return None


def _name(segment: RegistrableSegment) -> str:
    return f"{segment.nbytes} bytes at {segment.base:#x} of segment {segment.segment_index}"
