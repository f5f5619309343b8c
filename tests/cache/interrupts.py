"""Ctrl-C at a chosen place of an operation: at calls inside of the cache, or wherever Python looks for signals."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import vmmcache.cache

CACHE: Final = str(Path(vmmcache.cache.__file__).parent)
INSIDE: Final = str(Path(vmmcache.__file__).parent)
LOOKING: Final = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME")
"""After these, CPython sees to signals."""


class Interrupt:
    """Raises KeyboardInterrupt at one call of a function of the cache's, counted from 1; 0 only counts."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        # A generator that is thrown away swallows what is raised in it.
        if event == "call" and frame.f_code.co_filename.startswith(CACHE) and not frame.f_code.co_flags & 0x20:
            self.reach()
        return None

    def reach(self) -> None:
        """Be at one more place."""
        self.seen += 1
        if self.seen == self.at:
            sys.settrace(None)
            raise KeyboardInterrupt

    def during(self, operation: Callable[[], object]) -> bool:
        """Whether the operation was interrupted."""
        before: Any = sys.gettrace()
        sys.settrace(self)
        try:
            operation()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


class FineInterrupt(Interrupt):
    """The same before each line inside of vmmcache, and after each of its calls and jumps."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            frame.f_trace_opcodes = True
            return self if frame.f_code.co_filename.startswith(INSIDE) else None
        if event == "line":
            self.reach()
        elif event == "opcode":
            before = self._last.get(frame, "")
            self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(LOOKING):
                self.reach()
        return self

    def during(self, operation: Callable[[], object]) -> bool:
        """Whether the operation was interrupted."""
        try:
            return super().during(operation)
        finally:
            self._last.clear()
