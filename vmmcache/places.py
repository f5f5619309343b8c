"""What a driver has given out: which addresses are reserved, what is mapped there, and what may be touched.

The operating system forgives mapping over a mapping; CUDA forgives unmapping two mappings as one; HIP frees
addresses that memory is still mapped at, and crashes on addresses that it does not know. None of that reaches a
vendor's library from here: the table refuses it, on every device alike, so that code which runs on one has kept
the rules of all.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass

from vmmcache.errors import DriverError

__all__ = ["Places", "Refuse", "Wrong"]


class Wrong(enum.Enum):
    """What is wrong with a request. The value is the end of the sentence."""

    NO_SUCH_RESERVATION = "no such reservation"
    STILL_MAPPED = "memory is still mapped there"
    NOT_RESERVED = "not reserved"
    OCCUPIED = "something is mapped there"
    NOT_ONE_MAPPING = "not exactly one mapping"
    NOT_A_RUN = "not a run of whole mappings"
    NOT_MAPPED = "not all of it is mapped"
    NO_ACCESS = "mapped without access"
    READ_ONLY = "mapped for reading only"
    NO_SUCH_ALLOCATION = "unknown, or released before"


Refuse = Callable[[str, Wrong, str], DriverError]
"""Makes the error for a verb, what is wrong, and with what."""


@dataclass(slots=True)
class _Mapped:
    nbytes: int
    granted: bool = False
    writable: bool = False


class Places:
    """Reservations and mappings by address. Callers hold the driver's lock."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse
        self._reserved: dict[int, int] = {}
        self._bases: list[int] = []  # keys of _reserved, sorted
        self._mapped: dict[int, _Mapped] = {}
        self._starts: list[int] = []  # keys of _mapped, sorted

    def counts(self) -> tuple[int, int]:
        """How many reservations and mappings there are."""
        return len(self._reserved), len(self._mapped)

    def reserve(self, address: int, nbytes: int) -> None:
        """Enter a reservation."""
        self._reserved[address] = nbytes
        insort(self._bases, address)

    def check_free(self, address: int, nbytes: int) -> None:
        """See that this is exactly a reservation with nothing mapped in it."""
        if self._reserved.get(address) != nbytes:
            raise self._refuse("free", Wrong.NO_SUCH_RESERVATION, _text(address, nbytes))
        if bisect_left(self._starts, address) != bisect_left(self._starts, address + nbytes):
            raise self._refuse("free", Wrong.STILL_MAPPED, _text(address, nbytes))

    def free(self, address: int) -> None:
        """Take a reservation out."""
        del self._reserved[address]
        del self._bases[bisect_left(self._bases, address)]

    def check_map(self, address: int, nbytes: int) -> None:
        """See that a range is reserved and that nothing is mapped in it."""
        base = bisect_right(self._bases, address)
        if not base or self._bases[base - 1] + self._reserved[self._bases[base - 1]] < address + nbytes:
            raise self._refuse("map", Wrong.NOT_RESERVED, _text(address, nbytes))
        after = bisect_left(self._starts, address + nbytes)
        if after and self.end(self._starts[after - 1]) > address:
            raise self._refuse("map", Wrong.OCCUPIED, _text(address, nbytes))

    def map(self, address: int, nbytes: int) -> None:
        """Enter a mapping, without access."""
        self._mapped[address] = _Mapped(nbytes)
        insort(self._starts, address)

    def check_unmap(self, address: int, nbytes: int) -> None:
        """See that this is exactly one mapping."""
        mapped = self._mapped.get(address)
        if mapped is None or mapped.nbytes != nbytes:
            raise self._refuse("unmap", Wrong.NOT_ONE_MAPPING, _text(address, nbytes))

    def unmap(self, address: int) -> None:
        """Take a mapping out."""
        del self._mapped[address]
        del self._starts[bisect_left(self._starts, address)]

    def check_run(self, address: int, nbytes: int) -> list[int]:
        """See that a range is whole mappings; their addresses."""
        run = self._covering("grant", address, nbytes)
        if run[0] != address or self.end(run[-1]) != address + nbytes:
            raise self._refuse("grant", Wrong.NOT_A_RUN, _text(address, nbytes))
        return run

    def grant(self, run: list[int], writable: bool = True) -> None:
        """Note that mappings may be read, and written where `writable`."""
        for start in run:
            self._mapped[start].granted = True
            self._mapped[start].writable = writable

    def check_access(self, verb: str, address: int, nbytes: int, *, writing: bool = False) -> None:
        """See that every byte of a range may be read, and written where `writing`."""
        for start in self._covering(verb, address, nbytes):
            if not self._mapped[start].granted:
                raise self._refuse(verb, Wrong.NO_ACCESS, _text(address, nbytes))
            if writing and not self._mapped[start].writable:
                raise self._refuse(verb, Wrong.READ_ONLY, _text(address, nbytes))

    def end(self, start: int) -> int:
        """The first address behind a mapping."""
        return start + self._mapped[start].nbytes

    def _covering(self, verb: str, address: int, nbytes: int) -> list[int]:
        """Addresses of the mappings that cover a range; refused where there is a hole."""
        first = max(0, bisect_right(self._starts, address) - 1)
        run = self._starts[first : bisect_left(self._starts, address + nbytes)]
        reached = address
        for start in run:
            if start > reached:
                break
            reached = self.end(start)
        if not run or reached < address + nbytes:
            raise self._refuse(verb, Wrong.NOT_MAPPED, _text(address, nbytes))
        return run


def _text(address: int, nbytes: int) -> str:
    return f"{nbytes} bytes at {address:#x}"
