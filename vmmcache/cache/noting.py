"""Undo steps that may be refused: what went wrong first is the error, what went wrong while undoing is a note on it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final

from vmmcache.errors import VmmCacheError

__all__ = ["NOTE", "Exit", "noting"]

NOTE: Final = "undoing failed too: "
"""How the notes begin."""

Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


def noting(step: Callable[[], object]) -> Exit:
    """An undo step for `vmmcache.memory.undo.UndoStack.push`."""

    def undo(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            step()
        except VmmCacheError as refusal:
            if error is None:
                raise
            error.add_note(f"{NOTE}{refusal}")

    return undo
