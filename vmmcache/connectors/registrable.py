"""What memory has to offer so that a connector can register it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from vmmcache.connectors.leases import RegistrationLease
from vmmcache.memory.descriptors import RegistrableSegment

__all__ = ["Registrable"]


@runtime_checkable
class Registrable(Protocol):
    """Memory in segments, each of which grows as a prefix of its place. `ExtensibleTensor` is one.

    Growth appends: what was described before stays as it was, but that the last entry of a segment may have become
    longer. Memory that goes away makes descriptors stale, and leases forbid it.
    """

    @property
    def device(self) -> str:
        """The device string, for example ``"cuda:0"``."""

    @property
    def segment_sizes(self) -> Sequence[int]:
        """Most bytes that each segment can have."""

    def registrable(self) -> Sequence[RegistrableSegment]:
        """What is committed, by address: disjoint entries, each of which lies in one allocation."""

    def check(self, segment: RegistrableSegment) -> None:
        """Raise StaleSegment if the descriptor does not describe this memory any more."""

    def lease(
        self, i: int, owner: str, on_revoke: Callable[[RegistrationLease], object] | None = None
    ) -> RegistrationLease:
        """Promise that what segment `i` has committed now stays as it is, until the lease is released."""
