"""Whose fault it is that there is no agreement."""

from __future__ import annotations

import time
from collections.abc import Mapping

from vmmcache.cache.ranks._peers import Process
from vmmcache.cache.ranks._verdicts import NOBODY, State, Verdict

__all__ = ["Watch"]

_MOMENT_S = 0.05


class Watch:
    """Looks at the processes of this machine, and finds the words.

    Parameters
    ----------
    host : int or None
        The rank whose process hosts the store.
    timeout_s : float
        How long a rank waits for another.
    """

    def __init__(self, host: int | None, timeout_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self.peers: dict[int, Process] = {}
        """Other ranks of this machine."""

    def dead(self) -> dict[int, Process]:
        """Ranks of this machine whose process has ended."""
        return {rank: process for rank, process in self.peers.items() if process.condition == "ended"}

    def missing(self, rank: int, dead: Mapping[int, Process]) -> tuple[State, str]:
        """What to say of a rank that has not come."""
        if rank in dead:
            return "dead", f"is gone: its {dead[rank]} has ended"
        return "late", f"has not come within {self._timeout_s:g} s{self._condition(rank)}"

    def unreachable(self, problem: str, patience_s: float) -> Verdict:
        """What to say where the store cannot be asked.

        Parameters
        ----------
        problem : str
        patience_s : float
            How long to look whether a process ends: one that is being ended closes its connections before it is gone.
        """
        end = time.monotonic() + patience_s
        while not (dead := self.dead()) and self.peers and time.monotonic() < end:
            time.sleep(_MOMENT_S)
        if dead:
            rank = self._host if self._host is not None and self._host in dead else min(dead)
            return Verdict(rank, "dead", f"is gone: its {dead[rank]} has ended, and the store cannot be reached")
        if self._host is None:
            return Verdict(NOBODY, "unreachable", f"hosts the store that the ranks share, which {problem}")
        return Verdict(self._host, "unreachable", f"hosts the store, which {problem}{self._condition(self._host)}")

    def _condition(self, rank: int) -> str:
        process = self.peers.get(rank)
        return "" if process is None else f"; its {process} is {process.condition}"
