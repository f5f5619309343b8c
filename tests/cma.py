"""The connector of docs/connectors.md, and one like it that writes down what it is asked and fails where it is told to.

Both copy between real processes; the second one is the first with something added, never a stand-in for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from vmmcache import ConnectorError, RegistrableSegment

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"

with pytest.MonkeyPatch.context() as patch:
    # For the import only: on the path for good, the examples' entry points would be plug-ins in every other test.
    patch.syspath_prepend(EXAMPLES)
    from vmmcache_cma._connector import CmaConnector

__all__ = ["EXAMPLES", "CmaConnector", "JournalConnector", "Refused"]


class Refused(ConnectorError):
    """What a `JournalConnector` raises."""

    def __init__(self, call: str) -> None:
        super().__init__(f"{call} was told to fail", connector="cma", call=call)


class JournalConnector(CmaConnector):
    """Writes down the verbs that reach the library, those that fail as well."""

    def __init__(self, *, patience_s: float = 30.0) -> None:
        super().__init__(patience_s=patience_s)
        self.calls: list[str] = []
        self._fails: range | None = None
        self.on_invalidate = lambda: self._note("tell peers")
        self.on_quiesce = lambda: self._note("stop requests")

    def names(self) -> list[str]:
        """The calls since the last look."""
        names, self.calls = self.calls, []
        return names

    def arm(self, at: int, *, persist: bool = False) -> None:
        """Forget the calls so far; of those that come, let number `at` fail, and with `persist` all after it too."""
        self.calls = []
        self._fails = range(at, 1 << 60 if persist else at + 1)

    def disarm(self) -> None:
        self._fails = None

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self._fails is not None and len(self.calls) - 1 in self._fails:
            raise Refused(call)

    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in super()._register(segments):
            self._note(f"register {segment.segment_index}")
            yield segment

    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in super()._unregister(segments):
            self._note(f"unregister {segment.segment_index}")
            yield segment

    def _quiesce(self) -> None:
        super()._quiesce()
        self._note("quiesce")

    def _close_handles(self, segments: Sequence[RegistrableSegment]) -> None:
        self._note("close handles")
