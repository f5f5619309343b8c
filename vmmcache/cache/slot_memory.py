"""What a backing asks of the memory that its slots are in. `vmmcache.ExtensibleTensor` has it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from vmmcache.connectors.registrable import Registrable

if TYPE_CHECKING:
    import torch

__all__ = ["SlotMemory"]


class SlotMemory(Registrable, Protocol):
    """Memory in segments, as a backing uses it; `vmmcache.ExtensibleTensor` says what each method does."""

    @property
    def state(self) -> str:
        """``"reserved"``, ``"committed"``, ``"asleep"`` or ``"closed"``."""

    @property
    def committed(self) -> tuple[int, ...]:
        """Committed bytes of each segment; all 0 while asleep."""

    @property
    def committed_bytes(self) -> int:
        """Sum of `committed`."""

    @property
    def physical_bytes(self) -> int:
        """Bytes that the device has given."""

    def commit(
        self, nbytes: Sequence[int], defragment: bool = False, keep: bool = False, *, revoke: bool = False
    ) -> None:
        """Set how many bytes of each segment are backed."""

    def release_physical(self, backup: bool = False, *, revoke: bool = False) -> None:
        """Give all memory back until `restore`."""

    def restore(self) -> None:
        """Get it again."""

    def close(self, *, revoke: bool = False) -> None:
        """Give everything back."""

    def trim(self) -> None:
        """Give back what straddles a cut."""

    def check_leases(self, *, revoke: bool = False) -> None:
        """See that nothing is leased."""

    def segment_view(self, i: int) -> torch.Tensor:
        """The committed bytes of a segment, exactly."""

    def read(self, pieces: Sequence[tuple[int, int, int]]) -> list[bytearray]:
        """Copy committed bytes to the host."""

    def write(self, pieces: Sequence[tuple[int, int, bytes | bytearray]]) -> None:
        """Copy host bytes to committed ones."""

    def copy(self, pieces: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy committed bytes within segments."""
