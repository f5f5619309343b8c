"""Whether this interpreter checks what it is told to check."""

from __future__ import annotations

from vmmcache.errors import StateError

__all__ = ["require_assertions"]


def require_assertions(what: str) -> None:
    """See that assert statements are carried out.

    Raises
    ------
    StateError
        The interpreter leaves them out (``-O``, ``PYTHONOPTIMIZE``), so that `what` would find nothing, whatever is
        wrong.
    """
    if not __debug__:
        raise StateError(
            f"{what} is made of assert statements, and this interpreter leaves them out: everything would pass. Run it "
            "without -O, and without PYTHONOPTIMIZE in the environment",
            state="optimised",
            event="import",
        )
