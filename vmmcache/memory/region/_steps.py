"""The steps that growth and exchange are made of: each does one thing and leaves its undo behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from vmmcache.driver import HandleType, Mapping, Reservation
from vmmcache.errors import DriverError, OutOfDeviceMemory
from vmmcache.memory.ranges import Range, inside
from vmmcache.memory.region._ledger import Debt
from vmmcache.memory.region._table import MappingTable, extent
from vmmcache.memory.region._verbs import Verbs
from vmmcache.memory.undo import UndoStack

__all__ = ["Offer", "Steps"]

_Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class Offer(NamedTuple):
    """An allocation of another process, and where it is wanted."""

    offset: int
    nbytes: int
    shared: int | bytes
    """The handle; stays its owner's to close."""
    kind: HandleType


class Steps:
    """Driver calls of one operation. If the operation fails, everything that it made goes back, last first.

    `made` holds a `Debt` for each thing made: the driver is owed it, unless the operation succeeds. `give_back` takes
    them then, with the error that is on its way.
    """

    def __init__(
        self,
        undo: UndoStack,
        driver: Verbs,
        reservation: Reservation,
        table: MappingTable,
        give_back: Callable[[Iterable[Debt], BaseException], None],
    ) -> None:
        self.made: Final[list[Debt]] = []
        self._undo = undo
        self._driver = driver
        self._reservation = reservation
        self._table = table
        self._give_back = give_back
        undo.push(self._take_back)

    def fill(self, pieces: Sequence[Range]) -> None:
        """Back a run of adjacent pieces, an allocation each.

        Access is granted to the whole run at once, before the table knows it: no byte that the table knows is ever
        mapped without access (I5).
        """
        run = [self.place(self.create(stop - start), self._reservation, start) for start, stop in pieces]
        self._driver.grant(run)
        for mapping in run:
            self._table.insert(mapping)

    def adopt(self, offer: Offer, *, writable: bool) -> None:
        """Map memory of another process at its place."""
        debt = Debt(allocation=self._driver.import_handle(offer.shared, offer.kind, offer.nbytes))
        self.made.append(debt)
        mapping = self.place(debt, self._reservation, offer.offset)
        self._driver.grant([mapping], writable=writable)
        self._table.insert(mapping)

    def reserve(self, nbytes: int) -> Reservation:
        """Scratch addresses."""
        scratch = self._driver.reserve(nbytes)
        self.made.append(Debt(reservation=scratch))
        return scratch

    def create(self, nbytes: int) -> Debt:
        """An allocation that is mapped nowhere yet."""
        try:
            debt = Debt(allocation=self._driver.create(nbytes))
        except OutOfDeviceMemory as error:
            error.committed = sum(mapping.nbytes for mapping in self._table)
            raise
        self.made.append(debt)
        return debt

    def place(self, debt: Debt, reservation: Reservation, offset: int) -> Mapping:
        """Map an allocation. Undone together with the allocation."""
        assert debt.allocation is not None  # made by create()
        debt.mapping = self._driver.map(reservation, offset, debt.allocation)
        return debt.mapping

    def lift(self, debt: Debt) -> None:
        """Unmap an allocation and keep it."""
        assert debt.mapping is not None  # placed before
        self._driver.unmap(debt.mapping)
        debt.mapping = None

    def copy_in(self, debt: Debt, run: Range, kept: Sequence[Range], fresh: Sequence[Range], base: int) -> None:
        """Fill an allocation at scratch addresses that will back `run`: `kept` bytes copied, `fresh` zeroed."""
        assert debt.mapping is not None  # placed before
        shift = debt.mapping.address - run[0]
        for start, stop in inside(kept, *run):
            self._driver.copy(start + shift, base + start, stop - start)
        if not self._driver.fresh_is_zero:
            for start, stop in inside(fresh, *run):
                self._driver.zero(start + shift, stop - start)

    def set_aside(self, mapping: Mapping) -> None:
        """Unmap what the region has; undone by mapping the same allocation at the same place."""
        self._driver.unmap(mapping)
        self._table.remove([mapping])
        self._undo.push(self._put_back(mapping))

    def swap_in(self, debt: Debt, start: int) -> None:
        """Place an allocation where another was set aside; undone before that one comes back."""
        mapping = self.place(debt, self._reservation, start)
        self._undo.push(self._take_out(debt))
        self._driver.grant([mapping])
        self._table.insert(mapping)

    def _take_back(self, _: object, error: BaseException | None, __: object) -> None:
        self._table.remove(debt.mapping for debt in self.made if debt.mapping is not None)
        self._give_back(reversed(self.made), _on_its_way(error))

    def _put_back(self, mapping: Mapping) -> _Exit:
        def undo(_: object, error: BaseException | None, __: object) -> None:
            debt = Debt(allocation=mapping.allocation)
            self.made.append(debt)
            if self._occupied(mapping):
                # By what could not be taken out again. The note on that says so.
                return
            try:
                self._driver.grant([self.place(debt, self._reservation, mapping.offset)])
            except DriverError as refusal:
                lost = f"{mapping.nbytes} bytes at {mapping.address:#x} are lost"
                _on_its_way(error).add_note(f"undoing failed too, {lost}: {refusal}")
            else:
                self.made.remove(debt)
                self._table.insert(mapping)

        return undo

    def _take_out(self, debt: Debt) -> _Exit:
        def undo(_: object, error: BaseException | None, __: object) -> None:
            mapping = debt.mapping
            assert mapping is not None  # swapped in
            try:
                self.lift(debt)
            except DriverError as refusal:
                _on_its_way(error).add_note(f"undoing failed too: {refusal}")
                if mapping in self._table.between(*extent(mapping)):
                    # It holds a copy of what was visible there, and stays in its place. Without access, it stays in
                    # `made`, and so is given back at the bottom of the undo stack.
                    self.made.remove(debt)
            else:
                self._table.remove([mapping])

        return undo

    def _occupied(self, mapping: Mapping) -> bool:
        start, stop = extent(mapping)
        stuck = [each.mapping for each in self.made if each.mapping and each.mapping.reservation == self._reservation]
        return bool(
            self._table.between(start, stop)
            or any(other.offset < stop and start < other.offset + other.nbytes for other in stuck)
        )


def _on_its_way(error: BaseException | None) -> BaseException:
    assert error is not None  # an undo stack that is not committed unwinds only for an error
    return error
