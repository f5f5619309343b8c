"""The host's addresses: what is reserved, what is mapped there, and what may be touched.

The operating system forgives what no GPU does: mapping over a mapping, unmapping half of one, addresses that were never
reserved. This table does not, so that code which runs on the host has kept the rules that the vendors enforce.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from vmmcache_host._libc import refusal

__all__ = ["Places"]


@dataclass(slots=True)
class _Mapped:
    nbytes: int
    handle: int
    granted: bool = False


class Places:
    """Reservations and mappings by address. Callers hold the driver's lock."""

    def __init__(self) -> None:
        self._reserved: dict[int, int] = {}
        self._bases: list[int] = []  # keys of _reserved, sorted
        self._mapped: dict[int, _Mapped] = {}
        self._starts: list[int] = []  # keys of _mapped, sorted

    def reserve(self, address: int, nbytes: int) -> None:
        """Enter a reservation."""
        self._reserved[address] = nbytes
        insort(self._bases, address)

    def check_free(self, address: int, nbytes: int) -> None:
        """See that this is exactly a reservation with nothing mapped in it."""
        if self._reserved.get(address) != nbytes:
            raise refusal("munmap", errno.EINVAL, f"{nbytes} bytes at {address:#x}: no such reservation")
        if bisect_left(self._starts, address) != bisect_left(self._starts, address + nbytes):
            raise refusal("munmap", errno.EBUSY, f"the reservation at {address:#x}: memory is still mapped in it")

    def free(self, address: int) -> None:
        """Take a reservation out."""
        del self._reserved[address]
        del self._bases[bisect_left(self._bases, address)]

    def check_map(self, address: int, nbytes: int) -> None:
        """See that a range is reserved and that nothing is mapped in it."""
        base = bisect_right(self._bases, address)
        if not base or self._bases[base - 1] + self._reserved[self._bases[base - 1]] < address + nbytes:
            raise refusal("mmap", errno.EFAULT, f"{nbytes} bytes at {address:#x}: not reserved")
        after = bisect_left(self._starts, address + nbytes)
        if after and self.end(self._starts[after - 1]) > address:
            raise refusal("mmap", errno.EEXIST, f"{nbytes} bytes at {address:#x}: something is mapped there")

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Enter a mapping, without access."""
        self._mapped[address] = _Mapped(nbytes, handle)
        insort(self._starts, address)

    def check_unmap(self, address: int, nbytes: int) -> int:
        """See that this is exactly one mapping; its allocation."""
        mapped = self._mapped.get(address)
        if mapped is None or mapped.nbytes != nbytes:
            raise refusal("mmap", errno.EINVAL, f"unmapping {nbytes} bytes at {address:#x}: not exactly one mapping")
        return mapped.handle

    def unmap(self, address: int) -> None:
        """Take a mapping out."""
        del self._mapped[address]
        del self._starts[bisect_left(self._starts, address)]

    def check_run(self, address: int, nbytes: int) -> list[int]:
        """See that a range is whole mappings; their addresses."""
        run = self._covering("mprotect", address, nbytes)
        if run[0] != address or self.end(run[-1]) != address + nbytes:
            raise refusal("mprotect", errno.EINVAL, f"{nbytes} bytes at {address:#x}: not a run of whole mappings")
        return run

    def grant(self, run: list[int]) -> None:
        """Note that mappings may be touched."""
        for start in run:
            self._mapped[start].granted = True

    def check_access(self, call: str, address: int, nbytes: int) -> None:
        """See that every byte of a range may be touched."""
        for start in self._covering(call, address, nbytes):
            if not self._mapped[start].granted:
                raise refusal(call, errno.EACCES, f"{nbytes} bytes at {address:#x}: mapped without access")

    def end(self, start: int) -> int:
        """The first address behind a mapping."""
        return start + self._mapped[start].nbytes

    def _covering(self, call: str, address: int, nbytes: int) -> list[int]:
        """Addresses of the mappings that cover a range; refused where there is a hole."""
        first = max(0, bisect_right(self._starts, address) - 1)
        run = self._starts[first : bisect_left(self._starts, address + nbytes)]
        reached = address
        for start in run:
            if start > reached:
                break
            reached = self.end(start)
        if not run or reached < address + nbytes:
            raise refusal(call, errno.EFAULT, f"{nbytes} bytes at {address:#x}: not all of it is mapped")
        return run
