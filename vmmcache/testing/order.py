"""The order in which a driver may be called, as a model of what was reserved, created, mapped and granted.

A vendor's library answers a broken rule with an error code on a good day. This model answers every one of them with an
AssertionError, before the driver is called. It is plain dicts and linear scans, and shares no code with the package.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CallOrder"]


class CallOrder:
    """What the driver has given and not got back, and which call may come next.

    Each verb has two methods: ``may_<verb>`` raises AssertionError where the call breaks a rule, ``did_<verb>`` enters
    what the call has changed.
    """

    def __init__(self) -> None:
        self.reserved: Final[dict[int, int]] = {}
        """Bytes of each reservation, by address."""
        self.allocations: Final[dict[int, int]] = {}
        """Bytes of each allocation that was created and not released, by handle."""
        self.mapped: Final[dict[int, tuple[int, int]]] = {}
        """Bytes and handle of each mapping, by address."""
        self.granted: Final[set[int]] = set()
        """Addresses of the mappings that may be touched."""
        self.busy: Final[list[tuple[int, int]]] = []
        """Address and bytes of every range that the device may still be working on."""
        self.created = 0
        self.released = 0

    # Addresses ------------------------------------------------------------------------------------------------------

    def did_reserve(self, address: int, nbytes: int) -> None:
        """Addresses came in: nobody else's."""
        for start, size in self.reserved.items():
            assert address + nbytes <= start or start + size <= address, (
                f"the driver gave {nbytes} bytes at {address:#x}, inside the reservation of {size} bytes at {start:#x}"
            )
        self.reserved[address] = nbytes

    def may_free(self, address: int, nbytes: int) -> None:
        """Only exactly a reservation, and only an empty one (I2)."""
        assert self.reserved.get(address) == nbytes, f"free of {nbytes} bytes at {address:#x}: no such reservation"
        inside = [start for start in self.mapped if address <= start < address + nbytes]
        assert not inside, f"free of the reservation at {address:#x} with {len(inside)} mappings in it"

    def did_free(self, address: int, nbytes: int) -> None:
        """Addresses went back."""
        del self.reserved[address]

    # Memory ---------------------------------------------------------------------------------------------------------

    def did_create(self, handle: int, nbytes: int) -> None:
        """Memory came in."""
        assert handle not in self.allocations, f"the driver gave handle {handle} twice"
        self.allocations[handle] = nbytes
        self.created += 1

    def may_release(self, handle: int) -> None:
        """Once (I3)."""
        assert handle in self.allocations, f"release of {handle}: unknown, or released before"

    def did_release(self, handle: int) -> None:
        """Memory went back."""
        del self.allocations[handle]
        self.released += 1

    # Addresses and memory together ----------------------------------------------------------------------------------

    def may_map(self, address: int, nbytes: int, handle: int) -> None:
        """A whole allocation, inside a reservation, where nothing is."""
        assert self.allocations.get(handle) == nbytes, f"map of {nbytes} bytes of {handle}: not a whole live allocation"
        homes = [
            start for start, size in self.reserved.items() if start <= address and address + nbytes <= start + size
        ]
        assert homes, f"map of {nbytes} bytes at {address:#x}: not inside a reservation"
        for start, (size, _) in self.mapped.items():
            assert address + nbytes <= start or start + size <= address, (
                f"map of {nbytes} bytes at {address:#x}, over the mapping of {size} bytes at {start:#x}"
            )

    def did_map(self, address: int, nbytes: int, handle: int) -> None:
        """Memory has an address."""
        self.mapped[address] = nbytes, handle

    def may_grant(self, address: int, nbytes: int) -> None:
        """A run of whole mappings, from the start of the first (D5)."""
        reached = address
        while reached < address + nbytes and reached in self.mapped:
            reached += self.mapped[reached][0]
        assert reached == address + nbytes, f"grant of {nbytes} bytes at {address:#x}: not a run of whole mappings"

    def did_grant(self, address: int, nbytes: int) -> None:
        """Memory may be touched."""
        self.granted.update(start for start in self.mapped if address <= start < address + nbytes)

    def may_unmap(self, address: int, nbytes: int) -> None:
        """Exactly a mapping, and only while the device does not work on it (I8)."""
        assert self.mapped.get(address, (0, 0))[0] == nbytes, (
            f"unmap of {nbytes} bytes at {address:#x}: not exactly a mapping"
        )
        for start, size in self.busy:
            assert start + size <= address or address + nbytes <= start, (
                f"unmap of {nbytes} bytes at {address:#x} while the device may be working on {size} bytes at "
                f"{start:#x}; synchronise first (I8)"
            )

    def did_unmap(self, address: int, nbytes: int) -> None:
        """Memory has lost an address."""
        del self.mapped[address]
        self.granted.discard(address)

    # Contents -------------------------------------------------------------------------------------------------------

    def may_touch(self, verb: str, address: int, nbytes: int) -> None:
        """Only what is mapped and granted, without a hole (I5)."""
        reached = address
        for start in sorted(self.granted):
            size = self.mapped[start][0]
            if start <= reached < start + size:
                reached = start + size
        assert reached >= address + nbytes, f"{verb} of {nbytes} bytes at {address:#x}: not all of it may be touched"

    def did_start(self, address: int, nbytes: int) -> None:
        """The device has begun to work on a range."""
        self.busy.append((address, nbytes))

    def did_synchronise(self) -> None:
        """The device has finished all of it."""
        self.busy.clear()
