"""What is mapped in a region: facts about it, and its contents. Nothing in here maps or unmaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from vmmcache.driver import Allocation, HandleType, Mapping, VmmDriver
from vmmcache.memory.ranges import Range
from vmmcache.memory.region._gate import Gate
from vmmcache.memory.region._ledger import Ledger
from vmmcache.memory.region._table import MappingTable, extent, parts
from vmmcache.memory.region._verbs import Verbs
from vmmcache.metrics import Meter
from vmmcache.units import align_up

__all__ = ["Mapped"]


class Mapped:
    """The half of `vmmcache.memory.region.Region` that changes nothing of what is mapped."""

    def __init__(self, driver: VmmDriver, nbytes: int) -> None:
        self.driver: Final = driver
        self.granule: Final = driver.granule
        self.meter: Final = Meter(driver.device, driver.fds_per_allocation)
        self._verbs: Final = Verbs(driver, self.meter)
        self.gate: Final = Gate(driver, self._verbs, self.meter)
        self._table = MappingTable()
        self._ledger = Ledger(self._verbs)
        self._reservation = self._verbs.reserve(align_up(nbytes, self.granule))

    @property
    def base(self) -> int:
        """Address of the first byte; the same from construction to close (I1)."""
        return self._reservation.address

    @property
    def generation(self) -> int:
        """Raised whenever memory that was visible goes away (C4)."""
        return self.meter.generation

    @generation.setter
    def generation(self, number: int) -> None:
        self.meter.generation = number

    @property
    def nbytes(self) -> int:
        """Bytes of addresses, a multiple of the granule."""
        return self._reservation.nbytes

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """What is mapped and accessible, by address."""
        return tuple(self._table)

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """Every allocation that was created and not released (I3), also what the driver refused to take back."""
        owed = (debt.allocation for debt in self._ledger.debts if debt.allocation is not None)
        return (*(mapping.allocation for mapping in self._table), *owed)

    @property
    def physical_bytes(self) -> int:
        """Bytes of all `allocations`: what the device has given for this region and not got back."""
        return sum(allocation.nbytes for allocation in self.allocations)

    @property
    def owes(self) -> bool:
        """Whether the driver refused to take something back; the next operation tries it again."""
        return bool(self._ledger.debts)

    def touched_by(self, runs: Iterable[Range]) -> list[Mapping]:
        """Mappings that share a byte with any of `runs`, by address."""
        return self._table.touched_by(runs)

    def along(self, runs: Iterable[Range]) -> Iterator[tuple[Range, Mapping]]:
        """Each of `runs` (ascending, disjoint) with each mapping that shares a byte with it, by address."""
        return self._table.along(runs)

    def backed(self, start: int, stop: int) -> int:
        """Where the first hole at or after `start` is, at most `stop`."""
        return next((hole[0] for hole in self._table.holes(start, stop)), stop)

    def loose(self, spans: Sequence[Range]) -> list[tuple[Range, Range]]:
        """Allocations that are larger than `spans` need: where each lies, and what of it they need, first to last."""
        found = []
        for mapping in self._table:
            if needed := list(parts(mapping, spans)):
                run = (needed[0][0], needed[-1][1])
                if run != extent(mapping):
                    found.append((extent(mapping), run))
        return found

    # Contents -------------------------------------------------------------------------------------------------------

    def clean(self, fresh: Sequence[Range]) -> None:
        """Make bytes of backed ranges read as zero."""
        if fresh:
            self.gate.busy()
            for start, stop in fresh:
                self._verbs.zero(self.base + start, stop - start)
            self.gate.wait()

    def read(self, ranges: Sequence[Range]) -> list[bytearray]:
        """Copy backed ranges to the host, after the device has finished what was asked of it."""
        self.gate.wait()
        return [self._verbs.read(self.base + start, stop - start) for start, stop in ranges]

    def write(self, ranges: Sequence[Range], contents: Sequence[bytes | bytearray]) -> None:
        """Copy host bytes to backed ranges, in their order, after all that the device was asked before.

        They have arrived when this returns. A driver's `write` may return earlier, when it has taken them: whoever
        reads by another stream, from another process or through a NIC would not see them yet.
        """
        self.gate.wait()
        self.gate.busy()
        for (start, _), data in zip(ranges, contents, strict=True):
            self._verbs.write(self.base + start, data)
        self.gate.wait()

    def copy(self, pairs: Sequence[tuple[Range, Range]]) -> None:
        """Copy backed ranges, ``(target, source)``, one after the other, after all that the device was asked before."""
        self.gate.wait()
        self.gate.busy()
        for (target, _), (start, stop) in pairs:
            self._verbs.copy(self.base + target, self.base + start, stop - start)
        self.gate.wait()

    # Handles --------------------------------------------------------------------------------------------------------

    def export(self, offset: int, kind: HandleType) -> int | bytes:
        """A handle, the caller's to close, of the allocation that backs the byte at `offset`."""
        (mapping,) = self._table.between(offset, offset + 1)
        return self._verbs.export_handle(mapping.allocation, kind)

    def export_dmabuf(self, start: int, stop: int) -> int:
        """A dma-buf descriptor of a backed range, the caller's to close."""
        return self._verbs.export_dmabuf(self.base + start, stop - start)
