"""File descriptors: some drivers hold one for every live allocation, and the usual soft limit is 1024."""

from __future__ import annotations

import resource
from typing import Final

__all__ = ["FD_CURE", "room_for"]

SPARE: Final = 256
"""Descriptors left to the rest of the process: sockets, files, the vendor's own."""

FD_CURE: Final = (
    "Raise the limit of open files (`ulimit -n`, or LimitNOFILE of the service), or commit in larger pieces"
)


def room_for(count: int) -> int:
    """See that this process may hold `count` descriptors and some to spare, raising the soft limit where it must.

    Returns
    -------
    int
        How many are missing under the hard limit, which only an administrator can raise; 0 where there is room.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return 0
    # Double, so that a tensor that grows step by step does not ask every time.
    ceiling = max(wanted, 2 * soft) if hard == resource.RLIM_INFINITY else min(max(wanted, 2 * soft), hard)
    if ceiling > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    return max(0, wanted - ceiling)
