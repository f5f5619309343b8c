"""The region; its theory of operation stands in the package's docstring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from vmmcache.driver import Mapping, Reservation, VmmDriver
from vmmcache.errors import DriverError
from vmmcache.memory.ranges import Range, subtract
from vmmcache.memory.region._ledger import Debt
from vmmcache.memory.region._mapped import Mapped
from vmmcache.memory.region._steps import Offer, Steps
from vmmcache.memory.region._table import extent, parts
from vmmcache.memory.states import Event, State, next_state
from vmmcache.memory.undo import UndoStack

__all__ = ["Guard", "Offer", "Region"]

Guard = Callable[[Sequence[Range]], None]
"""Called with the byte ranges that an operation would unmap, before it touches anything; raises to veto it."""


class Region(Mapped):
    """Addresses of one tensor, and the memory that comes and goes behind them.

    Ranges are ``(start, stop)`` byte offsets from `base`, ascending. A region does not know segments. Its owner
    makes every call inside `gate.operation`.

    Parameters
    ----------
    driver : VmmDriver
    nbytes : int
        Bytes of addresses; rounded up to the granule.
    guard : Guard
        The veto of leases (I9).
    chunk : int, optional
        Most bytes of an allocation, a multiple of the granule; None for one allocation per hole.
    """

    def __init__(self, driver: VmmDriver, nbytes: int, *, guard: Guard, chunk: int | None = None) -> None:
        self.state = State.RESERVED
        self._guard = guard
        self._chunk = driver.granule if driver.uniform_chunks else chunk
        self._shape: tuple[Range, ...] = ()
        self._unmapped = False
        """Whether memory was unmapped since the addresses were reserved."""
        super().__init__(driver, nbytes)
        self.meter.opened()

    def __repr__(self) -> str:
        return f"<Region of {self.nbytes} bytes at {self.base:#x} on {self.driver.device}, {self.state.value}>"

    def advance(self, event: Event) -> State:
        """The state after `event`, or StateError. The state itself changes when the event is done."""
        return next_state(self.state, event, who=self)

    # Growing --------------------------------------------------------------------------------------------------------

    def extend(self, spans: Iterable[Range], fresh: Sequence[Range]) -> None:
        """Back `spans` (on granules), then make the bytes of `fresh` read as zero (I7). All or nothing (I4).

        One allocation per maximal hole of each span: of two spans that share a granule, the first backs it.
        """
        after = self.advance(Event.COMMIT)
        # Lazily: the holes of a span are those that the spans before it left.
        self._grow((self._pieces(hole) for span in spans for hole in self._table.holes(*span)), fresh)
        self.state = after

    def restore(self, visible: Sequence[Range], contents: Sequence[bytes | bytearray] | None = None) -> None:
        """Back the very runs that `sleep` gave back, at the same addresses (I10). All or nothing.

        Bytes of `visible` read as zero afterwards, or as `contents`, which has one item for each range.
        """
        after = self.advance(Event.WAKE)
        self._grow(
            (self._pieces(run) if self.driver.uniform_chunks else [run] for run in self._shape), visible, contents
        )
        self._shape = ()
        self.state = after

    def adopt(self, offers: Sequence[Offer], *, writable: bool = True) -> None:
        """Map memory that another process made, each allocation at its place, with its contents. All or nothing (I4).

        Also after `sleep`: what is adopted then is what there is.
        """
        after = self.advance(Event.WAKE if self.state is State.ASLEEP else Event.COMMIT)
        self._settle()
        with self._steps() as steps:
            for offer in offers:
                steps.adopt(offer, writable=writable)
        self._shape = ()
        self.state = after

    # Giving back ----------------------------------------------------------------------------------------------------

    def retain(self, spans: Sequence[Range]) -> None:
        """Give back every allocation that touches none of `spans`. One that straddles a border stays.

        Whatever the driver refuses, also to wait for the device, such an allocation is owed from then on.
        """
        after = self.advance(Event.COMMIT)
        doomed = [mapping for mapping in self._table if next(parts(mapping, spans), None) is None]
        self._guard([extent(mapping) for mapping in doomed])
        self._condemn(doomed)
        self.state = after
        self._settle()

    def sleep(self, spans: Sequence[Range]) -> None:
        """Give all memory back and keep the addresses; `restore` backs again what `spans` need of each run."""
        after = self.advance(Event.SLEEP)
        doomed = list(self._table)
        self._check(doomed)
        awaited = 0
        if self.driver.keeps_memory and doomed:
            awaited = self.driver.memory_info().free + sum(mapping.nbytes for mapping in doomed)
        if self.state is not State.ASLEEP:
            needed = (list(parts(mapping, spans)) for mapping in doomed)
            self._shape = tuple((part[0][0], part[-1][1]) for part in needed if part)
        self.state = after
        # What was unmapped before, also by an undo or by a sleep that was refused, cannot be measured any more.
        kept = self._unmapped
        self._condemn(doomed)
        self._settle()
        if self.driver.keeps_memory and (kept or self.driver.memory_info().free < awaited):
            self._readdress()
        self._unmapped = False

    def close(self) -> None:
        """Give everything back, the addresses last (I2). Called again after an error, it goes on where it was."""
        after = self.advance(Event.CLOSE)
        doomed = list(self._table)
        self._check(doomed)
        if self.state is not State.CLOSED:
            self._ledger.enter([Debt(reservation=self._reservation)])
            self.meter.closed()
        self.state = after
        self._condemn(doomed)
        self._settle()

    # Exchanging -----------------------------------------------------------------------------------------------------

    def check_leases(self, runs: Iterable[Range]) -> None:
        """LeaseError where exchanging `runs` would unmap what is leased (I9)."""
        self._guard([extent(mapping) for mapping in self.touched_by(runs)])

    def rebuild(self, runs: Sequence[Range], fresh: Sequence[Range]) -> None:
        """Replace what `runs` (on granules) touch by one allocation each, without the contents.

        The old memory goes back first, because the new could not be had otherwise: a named exception to I4. After
        an error `backed` says what is left, and calling again finishes.
        """
        after = self.advance(Event.COMMIT)
        doomed = self.touched_by(runs)
        self._check(doomed)
        self._condemn(doomed)
        self._grow(([run] for run in runs), fresh)
        self.state = after

    def move(self, runs: Sequence[Range], fresh: Sequence[Range], kept: Sequence[Range]) -> None:
        """Replace what `runs` touch by one allocation each, with the contents of `kept`. All or nothing.

        Needs room for the new beside the old. The new is filled at scratch addresses and then changes places with
        the old, so that no allocation is ever mapped twice. The old is owed afterwards: the next operation gives
        it back.
        """
        after = self.advance(Event.COMMIT)
        self._settle()
        old = self.touched_by(runs)
        self._guard([extent(mapping) for mapping in old])
        with self._steps() as steps:
            scratch = steps.reserve(sum(stop - start for start, stop in runs))
            new = []
            at = 0
            for run in runs:
                new.append(debt := steps.create(run[1] - run[0]))
                self._verbs.grant([steps.place(debt, scratch, at)])
                steps.copy_in(debt, run, kept, fresh, self.base)
                at += run[1] - run[0]
            self.gate.busy()
            self.gate.wait()
            for debt in new:
                steps.lift(debt)
            # Of the old, and by an undo of the new.
            self._unmapped = True
            for mapping in old:
                steps.set_aside(mapping)
                self.generation += 1
            for debt, (start, _) in zip(new, runs, strict=True):
                steps.swap_in(debt, start)
        self.state = after
        self._ledger.enter(Debt(allocation=mapping.allocation) for mapping in old)
        self._ledger.enter([Debt(reservation=scratch)])

    # ----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _steps(self) -> Iterator[Steps]:
        with UndoStack() as undo:
            yield Steps(undo, self._verbs, self._reservation, self._table, self._settle_quietly)
            undo.commit()

    def _grow(
        self,
        runs: Iterable[Sequence[Range]],
        fresh: Sequence[Range],
        contents: Sequence[bytes | bytearray] | None = None,
    ) -> None:
        """Back each run of adjacent pieces, an allocation a piece; zero or write what is visible. All or nothing."""
        self._settle()
        with self._steps() as steps:
            for pieces in runs:
                steps.fill(pieces)
            if contents is not None:
                self.write(fresh, contents)
                return
            if self.driver.fresh_is_zero:
                new = sorted(extent(debt.mapping) for debt in steps.made if debt.mapping is not None)
                fresh = subtract(fresh, new)
            self.clean(fresh)

    def _readdress(self) -> None:
        """Let go of the addresses for a moment, because the device keeps the memory as long as they are reserved."""
        before = self._reservation
        self._verbs.free(before)
        try:
            again = self._verbs.reserve(before.nbytes, at=before.address)
        except DriverError as error:
            raise self._lost(before, "not again") from error
        if again != before:
            lost = self._lost(before, f"again only at {again.address:#x}")
            self._settle_quietly([Debt(reservation=again)], lost)
            raise lost

    def _lost(self, before: Reservation, instead: str) -> DriverError:
        # Views and graphs point to what is somebody else's now. There is no going on.
        self.state = State.CLOSED
        self.meter.closed()
        return DriverError(
            f"{self.driver.name}: {before.nbytes} bytes at {before.address:#x} had to be freed to get memory back, and "
            f"could be reserved {instead}: every pointer into them is lost",
            driver=self.driver.name,
            call="reserve",
            cure="Restart the process; a newer runtime gives memory back without this",
        )

    def _settle_quietly(self, owed: Iterable[Debt], error: BaseException) -> None:
        """Give back what a failed operation made; what the driver refuses now is a note on the error."""
        self.gate.busy()
        self._ledger.enter(owed)
        try:
            self._settle()
        except DriverError as refusal:
            # The notes of the refusal name the others.
            for note in (f"undoing failed too: {refusal}", *getattr(refusal, "__notes__", ())):
                error.add_note(note)

    def _settle(self) -> None:
        self._unmapped |= any(debt.mapping is not None for debt in self._ledger.debts)
        self._ledger.settle(self.gate.wait)

    def _check(self, doomed: Sequence[Mapping]) -> None:
        """All that can still refuse before anything has changed: leases, and a device that does not come to rest."""
        self._guard([extent(mapping) for mapping in doomed])
        if doomed:
            self.gate.wait()

    def _condemn(self, doomed: Sequence[Mapping]) -> None:
        if doomed:
            self._ledger.enter([Debt(mapping, mapping.allocation) for mapping in doomed])
            self._table.remove(doomed)
            self.generation += 1

    def _pieces(self, hole: Range) -> list[Range]:
        start, stop = hole
        step = self._chunk or stop - start
        return [(at, min(at + step, stop)) for at in range(start, stop, step)]
