"""Closing at the end of a ``with`` block, without hiding why the block ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import NoReturn, Self

from vmmcache.errors import VmmCacheError

__all__ = ["ClosedOnExit"]


class ClosedOnExit(ABC):
    """What `close` can refuse to close, as a context manager.

    It is the only owner of what it has: no copy is made of it, nor a pickle.

    A refusal is raised where the block ended by itself. Where it ended in an error, that error is the one that matters,
    and the refusal becomes a note to it: the frames of the error may hold the very views that forbid to close.
    """

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give back what there is to give back. The second time does nothing."""

    def __reduce__(self) -> NoReturn:
        # Without this `copy.copy` gives a second owner of the same memory, which is gone when the first one closes.
        raise TypeError(
            f"{self!r} belongs to this process and can be neither copied nor pickled; make another one where it is "
            "needed, or let another process map the same memory with TensorServer and SharedTensor"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except VmmCacheError as refusal:
            if error is None:
                raise
            error.add_note(f"not closed: {refusal}")
