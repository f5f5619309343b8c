"""A region divided into segments: what each has committed, and how a commit gets from one division to the next.

A commit has up to three parts, in an order that leaves the most intact if one fails: grow (all or nothing), cut (cannot
fail), give back (what the driver refuses stays owed). Defragmenting exchanges allocations unit by unit in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from vmmcache.errors import DriverError
from vmmcache.memory.descriptors import RegistrableSegment
from vmmcache.memory.ranges import Range
from vmmcache.memory.region import Guard, Region
from vmmcache.memory.segments import Segments, Unit
from vmmcache.memory.states import Event, State

__all__ = ["SegmentedRegion"]


class SegmentedRegion:
    """The segments of one tensor over its region. Callers are inside the region's gate."""

    def __init__(self, region: Region, segments: Segments, guard: Guard) -> None:
        self.region: Final = region
        self.segments: Final = segments
        self._guard = guard
        self._committed = [0] * len(segments)
        self._backup: list[bytearray] | None = None

    @property
    def committed(self) -> tuple[int, ...]:
        """Visible bytes of each segment; none while asleep or closed."""
        return tuple(self._committed) if self.region.state is State.COMMITTED else (0,) * len(self.segments)

    def visible_bytes(self) -> int:
        """Sum of `committed`."""
        return sum(self._committed) if self.region.state is State.COMMITTED else 0

    def committed_of(self, index: int) -> int:
        """Visible bytes of one segment."""
        return self._committed[index] if self.region.state is State.COMMITTED else 0

    def doomed(self, targets: Sequence[int], *, defragment: bool) -> list[Range]:
        """Bytes that a commit to `targets` would take away or exchange."""
        cuts = self.segments.between(targets, self._committed)
        if not defragment or self.region.driver.uniform_chunks:
            return cuts
        return sorted(
            {*cuts, *(extent for unit in self._inexact(targets) for run in unit.runs for extent in self._extents(run))}
        )

    # Growing and shrinking ------------------------------------------------------------------------------------------

    def commit(self, targets: tuple[int, ...], *, defragment: bool, keep: bool) -> None:
        """Make every segment's visible bytes those of `targets`."""
        after = self.region.advance(Event.COMMIT)
        # Where all allocations must have one size, there is nothing to put together, and nothing that straddles a cut.
        defragment = defragment and not self.region.driver.uniform_chunks
        if doomed := self.doomed(targets, defragment=defragment):
            # All that can refuse before anything has changed.
            self._guard(doomed)
            self.region.gate.wait()
        state, before = self.region.state, tuple(self._committed)
        low = tuple(map(min, before, targets))
        try:
            if not defragment:
                growing = tuple(new if new > old else 0 for old, new in zip(before, targets, strict=True))
                self.region.extend(self.segments.spans(growing), self.segments.between(low, targets))
            elif keep:
                self._move(before, low, targets)
            else:
                self._cut(low)
                self._rebuild(targets)
        except DriverError:
            if not any(self._committed):
                self.region.state = state
            raise
        self._cut(targets)
        self.region.state = after

    def loose(self) -> list[Range]:
        """Allocations that straddle a cut: all that `trim` exchanges."""
        return [there for there, _ in self.region.loose(self.segments.spans(self._committed))]

    def trim(self) -> None:
        """Exchange each allocation that straddles a cut for one that does not, contents copied, one after the other."""
        self.region.advance(Event.COMMIT)
        before = tuple(self._committed)
        loose = self.region.loose(self.segments.spans(before))
        self._guard([there for there, _ in loose])
        try:
            for _, run in loose:
                self.region.move([run], [], self._visible())
        except DriverError as error:
            self._settle_exchange(before, error)
            raise
        if loose or self.region.owes:
            self.region.retain(self.segments.spans(before))

    def _cut(self, targets: Sequence[int]) -> None:
        cut = any(new < old for old, new in zip(self._committed, targets, strict=True))
        self._committed = list(targets)
        if cut:
            # Also where no allocation goes back: descriptors of the bytes cut off are stale (C4).
            self.region.generation += 1
        if cut or self.region.owes:
            self.region.retain(self.segments.spans(targets))

    def _rebuild(self, targets: Sequence[int]) -> None:
        """One allocation for each segment, the old memory back first, unit by unit."""
        for unit in list(self._units(targets)):
            try:
                if unit.exact:
                    self.region.clean(self.segments.between(self._committed, targets, unit.indices))
                else:
                    self.region.rebuild(unit.runs, self.segments.between(None, targets, unit.indices))
            except DriverError:
                self._recount(unit.indices)
                raise
            for index in unit.indices:
                self._committed[index] = targets[index]

    def _move(self, before: Sequence[int], low: Sequence[int], targets: Sequence[int]) -> None:
        """One allocation for each segment, contents copied, unit by unit, each all or nothing.

        What is visible is copied also where it is about to be cut: if a later unit fails, it is still there.
        """
        kept = self._visible()
        try:
            for unit in list(self._units(targets)):
                fresh = self.segments.between(low, targets, unit.indices)
                if unit.exact:
                    self.region.clean(fresh)
                else:
                    self.region.move(unit.runs, fresh, kept)
        except DriverError as error:
            self._settle_exchange(before, error)
            raise

    def _settle_exchange(self, before: Sequence[int], error: DriverError) -> None:
        """After an exchange that failed, and whose undoing may have failed: see what is left, and keep just that."""
        self._recount(range(len(before)))
        if tuple(self._committed) != tuple(before):
            self.region.generation += 1
        try:
            self.region.retain(self.segments.spans(self._committed))
        except DriverError as refusal:
            for note in (f"undoing failed too: {refusal}", *getattr(refusal, "__notes__", ())):
                error.add_note(note)

    def _recount(self, indices: Iterable[int]) -> None:
        """After a failure, of what was visible in each segment that is left which is still backed, without a hole."""
        for index in indices:
            start = self.segments.offsets[index]
            self._committed[index] = self.region.backed(start, start + self._committed[index]) - start

    # Sleeping -------------------------------------------------------------------------------------------------------

    def release(self, *, backup: bool) -> None:
        """Give all memory back, after copying what is visible to the host where `backup` says so."""
        self.region.advance(Event.SLEEP)
        contents = None
        if self.region.state is State.COMMITTED:
            self._guard(self._visible())
            contents = self.region.read(self._visible()) if backup else None
        try:
            self.region.sleep(self.segments.spans(self._committed))
        finally:
            if contents is not None and self.region.state is State.ASLEEP:
                self._backup = contents

    def restore(self) -> None:
        """Back again what `release` gave back: zeroed, or with the contents that were copied."""
        self.region.restore(self._visible(), self._backup)
        self._backup = None

    def close(self) -> None:
        """Give everything back."""
        self.region.close()
        self._backup = None

    # Describing -----------------------------------------------------------------------------------------------------

    def registrable(self) -> Iterator[RegistrableSegment]:
        """One descriptor for each part of a segment that lies in one allocation, by address.

        Nothing is asked of the driver: what it knows of an allocation was read when that was made.
        """
        driver, granule, base = self.region.driver, self.region.granule, self.region.base
        device_type, device_id, mem_type = driver.device_type, driver.dlpack_device[1], driver.memory_kind
        generation = self.region.generation
        indices = (index for index, nbytes in enumerate(self.committed) if nbytes)
        index, last = -1, 0
        for (first, beyond), mapping in self.region.along(self.segments.between(None, self.committed)):
            if beyond != last:
                index, last = next(indices), beyond
            offset, size, allocation = mapping.offset, mapping.nbytes, mapping.allocation
            start, stop = max(first, offset), min(beyond, offset + size)
            # By position, in the order of the class, because ten thousand of these are made at once.
            yield RegistrableSegment(
                base + start,
                stop - start,
                device_type,
                device_id,
                mem_type,
                index,
                start - first,
                allocation.id,
                start - offset,
                size,
                offset <= start and stop <= offset + size,
                stop - start == beyond - first,
                start % granule == 0 and stop % granule == 0,
                generation,
                allocation.rdma_capable,
                allocation.handle_types,
            )

    # ----------------------------------------------------------------------------------------------------------------

    def _visible(self) -> list[Range]:
        return self.segments.between(None, self._committed)

    def _extents(self, run: Range) -> list[Range]:
        return [(mapping.offset, mapping.offset + mapping.nbytes) for mapping in self.region.touched_by([run])]

    def _units(self, targets: Sequence[int]) -> Iterator[Unit]:
        return self.segments.units(targets, self._extents)

    def _inexact(self, targets: Sequence[int]) -> list[Unit]:
        return [unit for unit in self._units(targets) if not unit.exact]
