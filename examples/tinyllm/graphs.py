"""Decode steps captured as CUDA (or HIP) graphs, for some batch sizes.

A graph holds addresses. On memory whose addresses never change a graph captured during warm-up stays good for the
cache's whole life, through growth and sleep; where addresses did change, graphs are captured anew. The engine compares
addresses (`Runner.bind`), and asks nobody which kind of memory it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tinyllm.paged import Table
from tinyllm.shape import Kind

__all__ = ["DecodeGraphs"]

_RUNS_BEFORE: Final = 2
"""Runs on a side stream before a capture, as torch asks for: libraries set themselves up in the first."""


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    tokens: Tensor
    positions: Tensor
    tables: dict[Kind, Table]
    logits: Tensor


class DecodeGraphs:
    """Graphs of one decode step, by batch size.

    Parameters
    ----------
    step
        What to capture: (tokens, positions, tables) -> logits.
    sizes
        Batch sizes; a batch between two of them runs in the larger, filled up with rows that write to the null block.
    device
        Graphs are for accelerators: on any other device there are none.
    """

    def __init__(
        self, step: Callable[[Tensor, Tensor, Mapping[Kind, Table]], Tensor], sizes: Sequence[int], device: str
    ) -> None:
        self._step: Final = step
        self.sizes: Final = tuple(sorted(sizes)) if torch.device(device).type == "cuda" else ()
        self._device: Final = device
        self._graphs: dict[int, _Graph] = {}
        self.captured = 0
        """Graphs captured in all; more than there are sizes where addresses changed."""
        self.replayed = 0
        """Decode steps that were replayed."""

    def forget(self) -> None:
        """Drop every graph."""
        self._graphs.clear()

    def capture(self, columns: Mapping[Kind, int]) -> None:
        """Capture what is not captured yet, the largest first: the others then share its memory.

        Parameters
        ----------
        columns
            Most columns of each table.
        """
        pool = None
        for size in reversed(self.sizes):
            if size in self._graphs:
                continue
            tokens, positions, first = (torch.zeros(size, 1, dtype=torch.int64, device=self._device) for _ in range(3))
            tables = {
                kind: Table(torch.zeros(size, width, dtype=torch.int64, device=self._device), first.clone())
                for kind, width in columns.items()
            }
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_RUNS_BEFORE):
                    self._step(tokens, positions, tables)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = self._step(tokens, positions, tables)
            pool = graph.pool()
            self._graphs[size] = _Graph(graph, tokens, positions, tables, logits)
            self.captured += 1

    def replay(
        self, tokens: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], tables: Mapping[Kind, Table]
    ) -> Tensor | None:
        """Run a batch in the smallest graph that has room; None where there is none."""
        rows = len(tokens)
        size = next((size for size in self.sizes if size >= rows and size in self._graphs), None)
        if size is None:
            return None
        graph = self._graphs[size]
        _fill(graph.tokens, torch.tensor(tokens))
        _fill(graph.positions, torch.tensor(positions))
        for kind, table in tables.items():
            _fill(graph.tables[kind].slots, table.slots)
            _fill(graph.tables[kind].first, table.first)
        graph.graph.replay()
        self.replayed += 1
        return graph.logits[:rows]


def _fill(whole: Tensor, part: Tensor) -> None:
    """Copy into the upper left corner; what is beyond names token 0, position 0, the null block."""
    whole.zero_()
    whole[: part.shape[0], : part.shape[1]] = part.to(whole.device)
