"""Segments of plain torch memory, with the life, the leases and the descriptors of a tensor on VMM memory.

Each segment is a storage of torch's, of exactly the committed bytes. A storage can be resized in place: tensors over it
keep their shape and find the new memory. So views survive sleeping, waking and growing, as on VMM memory; but the
*addresses* change whenever a segment's size does, and so, other than there, a segment that is leased cannot grow.

What torch does not do is check: a tensor that was made before its segment shrank, or that is touched while asleep,
reads and writes where nothing is. On VMM memory it would fault.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vmmcache.cache.plain_segments import PlainSegments
from vmmcache.errors import DriverError
from vmmcache.memory.contents import Pieces
from vmmcache.memory.ranges import Range
from vmmcache.memory.states import Event, State
from vmmcache.memory.undo import UndoStack

if TYPE_CHECKING:
    import torch

__all__ = ["PlainMemory"]


class PlainMemory(PlainSegments):
    """Segments that are committed, leased, put to sleep and closed as those of `vmmcache.ExtensibleTensor` are.

    Methods may be called from any thread. Parameters and errors of the constructor are those of `PlainSegments`.
    """

    def __init__(self, sizes: Sequence[int], granule: int, device: str, device_type: str | None = None) -> None:
        super().__init__(sizes, granule, device, device_type)
        self._asleep: tuple[int, ...] = ()
        """Sizes to wake up with."""
        self._backup: list[torch.Tensor] | None = None

    # Memory ---------------------------------------------------------------------------------------------------------

    def commit(
        self, nbytes: int | Sequence[int], defragment: bool = False, keep: bool = False, *, revoke: bool = False
    ) -> None:
        """Set how many bytes each segment has.

        A segment whose size changes moves to other addresses; tensors over it find it there. Growth comes first.

        Parameters
        ----------
        nbytes : int or sequence of int
            Bytes for every segment, or one number for each. 0 is fine.
        defragment : bool
            Nothing to do: a segment is one allocation always.
        keep : bool
            Copy the contents, with room for the old and the new of one segment at once. Without it, segments that
            change go back first, all of them, and are zero afterwards.
        revoke : bool
            Make owners of leases that are in the way let go first, by their callbacks.

        Raises
        ------
        ConfigError
            A size is no whole number, or more than its segment may have; or there are not as many as segments.
        StateError
            The memory is asleep or closed.
        LeaseError
            A segment that would change is leased: a larger one too, because it moves.
        OutOfDeviceMemory, DriverError
            torch cannot. With `keep` everything is as it was, but for a segment that was to shrink: it has its old size
            if there is no room for the copy. Without, `committed` says what is left. The same call finishes.
        """
        targets = self._segments.targets(nbytes)
        if revoke:
            self._leases.revoke(self._doomed(targets))
        with self._lock:
            after = self._advance(Event.COMMIT)
            doomed = self._doomed(targets)
            self._leases.guard(doomed)
            if doomed:
                self._storages.synchronise()
            changed = [index for index, size in enumerate(self.committed) if size != targets[index]]
            # What is moved and moved back is elsewhere too.
            self._generation += bool(doomed)
            try:
                if keep:
                    self._grow([index for index in changed if self.committed[index] < targets[index]], targets)
                else:
                    self._resize(changed, (0,) * len(targets))
                self._resize(changed, targets)
            except DriverError:
                self._state = after if any(self.committed) else self._state
                raise
            self._state = after
            if doomed:
                self._storages.give_back()

    def _grow(self, indices: Sequence[int], targets: Sequence[int]) -> None:
        before = self.committed
        for done, index in enumerate(indices):
            try:
                self._storages.resize(index, targets[index])
            except DriverError as error:
                for other in indices[:done]:
                    try:
                        self._storages.resize(other, before[other])
                    except DriverError as refusal:
                        error.add_note(f"undoing failed too, segment {other} stays grown: {refusal}")
                raise

    def _resize(self, indices: Sequence[int], targets: Sequence[int]) -> None:
        for index in indices:
            if self.committed[index] != targets[index]:
                self._storages.resize(index, targets[index])

    def _empty(self) -> None:
        self._resize(range(len(self._segments)), (0,) * len(self._segments))

    def trim(self) -> None:
        """Nothing to do: segments are exact always."""
        with self._lock:
            self._advance(Event.COMMIT)

    def release_physical(self, backup: bool = False, *, revoke: bool = False) -> None:
        """Give all memory back and remember the sizes. Until `restore`, tensors over it must not be touched.

        Parameters
        ----------
        backup : bool
            Copy what is committed to host memory first, so that `restore` brings the contents back.
        revoke : bool
            Make owners of leases let go first, by their callbacks.

        Raises
        ------
        StateError
            The memory is closed.
        LeaseError
            Something is leased.
        OutOfDeviceMemory
            No room for the backup. Everything is as it was.
        """
        self._revoke_all(revoke)
        with self._lock:
            after = self._advance(Event.SLEEP)
            if self._state is not State.ASLEEP:
                self._leases.guard(self._visible())
                self._storages.synchronise()
                self._backup = self._storages.backup() if backup else None
                self._asleep = self.committed
                self._generation += any(self._asleep)
                self._state = after
            self._empty()  # calling again finishes what an interrupt has left
            self._storages.give_back()

    def restore(self) -> None:
        """Get the same sizes again, zeroed unless there is a backup. Tensors over them are valid again.

        Raises
        ------
        StateError
            The memory is not asleep.
        OutOfDeviceMemory, DriverError
            torch cannot. The memory is still asleep, and a later call may succeed.
        """
        with self._lock:
            after = self._advance(Event.WAKE)
            self._empty()
            with UndoStack() as undo:
                undo.callback(self._empty)
                self._resize(range(len(self._asleep)), self._asleep)
                if self._backup is not None:
                    self._storages.refill(self._backup)
                undo.commit()
            self._state = after
            self._asleep, self._backup = (), None

    def close(self, *, revoke: bool = False) -> None:
        """Give everything back. The second time does nothing.

        Raises
        ------
        StateError
            Tensors over the memory are alive; says how many.
        LeaseError
            Something is leased.
        """
        self._check_views()
        self._revoke_all(revoke)
        with self._lock:
            after = self._advance(Event.CLOSE)
            if self._state is not State.CLOSED:
                self._check_views()
                self._leases.guard(self._visible())
                self._storages.synchronise()
                self._state = after
            self._empty()
            self._asleep, self._backup = (), None
            self._storages.give_back()

    # Contents -------------------------------------------------------------------------------------------------------

    def segment_view(self, i: int) -> torch.Tensor:
        """A uint8 tensor whose storage is exactly the committed bytes of segment `i` (I6)."""
        index = self._segments.index(i)
        with self._lock:
            if self._state is State.CLOSED:
                raise self._wrong("view", "make a new one")
            return self._storages.flat(index)

    def read(self, pieces: Iterable[tuple[int, int, int]]) -> list[bytearray]:
        """Copy committed bytes, ``(segment, offset, nbytes)`` each, to host memory."""
        with self._lock:
            ranges = self._pieces("read").to_read(pieces)
            self._storages.synchronise()
            return [self._storages.read(*self._at(start), stop - start) for start, stop in ranges]

    def write(self, pieces: Iterable[tuple[int, int, bytes | bytearray]]) -> None:
        """Copy host bytes, ``(segment, offset, data)`` each, to committed ones."""
        with self._lock:
            ranges, contents = self._pieces("write").to_write(pieces)
            self._storages.synchronise()
            for (start, _), data in zip(ranges, contents, strict=True):
                self._storages.write(*self._at(start), data)
            self._storages.synchronise()

    def copy(self, pieces: Iterable[tuple[int, int, int, int]]) -> None:
        """Copy committed bytes within segments, ``(segment, target, source, nbytes)`` each, one after the other."""
        with self._lock:
            pairs = list(self._pieces("copy").to_copy(pieces))
            self._storages.synchronise()
            for (target, _), (start, stop) in pairs:
                index, offset = self._at(start)
                self._storages.copy(index, self._at(target)[1], offset, stop - start)
            self._storages.synchronise()

    # ----------------------------------------------------------------------------------------------------------------

    def _pieces(self, event: str) -> Pieces:
        if self._state in (State.ASLEEP, State.CLOSED):
            raise self._wrong(event, "restore() first" if self._state is State.ASLEEP else "make a new one")
        return Pieces(self._segments, self.committed)

    def _at(self, start: int) -> tuple[int, int]:
        """Segment and offset of a byte."""
        index = bisect_right(self._segments.offsets, start) - 1
        return index, start - self._segments.offsets[index]

    def _doomed(self, targets: Sequence[int]) -> list[Range]:
        """Bytes that a commit to `targets` would take away or move."""
        return [
            (start, start + size)
            for start, size, target in zip(self._segments.offsets, self.committed, targets, strict=True)
            if size and size != target
        ]

    def _revoke_all(self, revoke: bool) -> None:
        # Outside the lock: an owner may have to wait for threads of its own that use this memory.
        if revoke:
            self._leases.revoke(self._visible())

    def _check_views(self) -> None:
        if (views := self._storages.views) and self._state is not State.CLOSED:
            raise self._wrong(
                Event.CLOSE.value, f"it has {views} live views; delete them, and what was made of them, first"
            )
