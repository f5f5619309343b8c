"""What a region owes its driver: mappings, allocations and addresses that are to go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vmmcache.driver import Allocation, Mapping, Reservation
from vmmcache.errors import DriverError
from vmmcache.memory.region._verbs import Verbs

__all__ = ["Debt", "Ledger"]


@dataclass(slots=True, eq=False)
class Debt:
    """Settled in this order, because each holds the next. A part becomes None when the driver has taken it."""

    mapping: Mapping | None = None
    allocation: Allocation | None = None
    reservation: Reservation | None = None

    @property
    def settled(self) -> bool:
        return self.mapping is None and self.allocation is None and self.reservation is None


class Ledger:
    """Debts, oldest first. Empty between operations, unless the driver refused to take something back."""

    def __init__(self, driver: Verbs) -> None:
        self._driver = driver
        self.debts: list[Debt] = []

    def enter(self, debts: Iterable[Debt]) -> None:
        """Owe these as well."""
        self.debts += debts

    def settle(self, wait: Callable[[], None]) -> None:
        """Give back all that is owed, and raise the first refusal when everything was tried.

        `wait` is called before anything is unmapped: an unmap must not overtake work on its range (I8).
        """
        if any(debt.mapping is not None for debt in self.debts):
            wait()
        refusals: list[DriverError] = []
        # Addresses last: they are freed only when nothing is mapped in them any more (I2).
        for debt in sorted(self.debts, key=lambda debt: debt.reservation is not None):
            try:
                self._settle_one(debt)
            except DriverError as error:
                refusals.append(error)
        self.debts = [debt for debt in self.debts if not debt.settled]
        if refusals:
            first, *others = refusals
            first.add_note(
                f"{len(self.debts)} things could not be given back; the next operation, or close(), tries again"
            )
            for other in others:
                first.add_note(f"also refused: {other}")
            raise first

    def _settle_one(self, debt: Debt) -> None:
        if debt.mapping is not None:
            self._driver.unmap(debt.mapping)
            debt.mapping = None
        if debt.allocation is not None:
            self._driver.release(debt.allocation)
            debt.allocation = None
        if debt.reservation is not None and not self._mapped_in(debt.reservation):
            self._driver.free(debt.reservation)
            debt.reservation = None

    def _mapped_in(self, reservation: Reservation) -> bool:
        return any(debt.mapping is not None and debt.mapping.reservation == reservation for debt in self.debts)
