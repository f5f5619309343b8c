"""Every region of this process, and who divides it. Nothing is held: what is dropped is gone from here as well."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Final, NamedTuple, Protocol

from vmmcache.connectors.leases import LeaseBook
from vmmcache.errors import ConfigError
from vmmcache.memory.region import Region
from vmmcache.memory.segments import Segments

__all__ = ["VARIABLE", "Divided", "Known", "known", "note"]

VARIABLE: Final = "VMMCACHE_MAP"
"""``1``: every process that makes a tensor publishes its map."""


class Divided(Protocol):
    """Who knows the segments of a region."""

    @property
    def segments(self) -> Segments:
        """Their sizes and places."""

    @property
    def committed(self) -> tuple[int, ...]:
        """Visible bytes of each segment."""


class Known(NamedTuple):
    """A region that is alive."""

    region: Region
    divided: Divided | None
    """None where the tensor is gone, and views keep the region."""
    leases: LeaseBook | None
    """None of memory that is another process's."""
    ours: bool
    """Whether the memory is this process's own."""


_log: Final = logging.getLogger(__name__)

_Entry = tuple["weakref.ref[Region]", "weakref.ref[Divided]", "weakref.ref[LeaseBook] | None"]
_entries: Final[dict[int, _Entry]] = {}


def note(region: Region, divided: Divided, leases: LeaseBook | None = None) -> None:
    """Know a region from now on, as long as it lives."""
    number = id(region)

    def gone(_: object) -> None:
        _entries.pop(number, None)

    _entries[number] = (
        weakref.ref(region, gone),
        weakref.ref(divided),
        None if leases is None else weakref.ref(leases),
    )
    if os.environ.get(VARIABLE) == "1":
        from vmmcache.memory.atlas.publishing import publish

        try:
            publish()
        except (ConfigError, OSError) as error:
            # Whoever set the variable wanted to look, not to end the process where there is no place to look at.
            _log.warning("%s=1, and the map of this process is not published: %s", VARIABLE, error)


# A forked child has none of them: the memory is its parent's, and so may be a thread that holds a lock.
os.register_at_fork(after_in_child=_entries.clear)


def known() -> list[Known]:
    """Regions that are alive, in the order in which they were made."""
    found = []
    for region_of, divided_of, leases_of in list(_entries.values()):
        if (region := region_of()) is not None:
            leases = None if leases_of is None else leases_of()
            found.append(Known(region, divided_of(), leases, leases_of is not None))
    return found
