"""An undo stack: what was done is undone, last first, unless `commit()` says that it may stay."""

from __future__ import annotations

from contextlib import ExitStack

__all__ = ["UndoStack"]


class UndoStack(ExitStack):
    """An ExitStack that `commit` disarms.

    Push the undo of a call *after* the call succeeded: an undo pushed before would take back what never happened,
    and its own error would hide the one that matters. Undo steps raise no driver errors of their own: what
    the driver refuses goes to the region's ledger, and a note on the error that is on its way says so.

    >>> with UndoStack() as undo:
    ...     _ = undo.callback(print, "undone")
    ...     undo.commit()
    """

    def commit(self) -> None:
        """Keep everything done so far."""
        self.pop_all()
