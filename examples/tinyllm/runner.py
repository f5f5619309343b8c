"""One step of the model over the manager's memory: a chunk of one prompt, or one token for each of a batch.

The runner knows blocks and no requests: who gives it a request's block numbers is not its business. That is what lets a
prefill process and a decode process each have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tinyllm.graphs import DecodeGraphs
from tinyllm.model import Model
from tinyllm.paged import AttentionCache, StateCache, Table, bind
from tinyllm.shape import KINDS, Kind

__all__ = ["Blocks", "Row", "Runner"]

Blocks = Mapping[Kind, Sequence[int]]
"""For each kind of layer the slots of a request's blocks, by ordinal; of a state the one slot."""


class Row(NamedTuple):
    """One request of a decode step."""

    token: int
    position: int
    blocks: Blocks


class Runner:
    """A model over bound views.

    Parameters
    ----------
    model
        This rank's part of it.
    longest
        Tokens of the longest request, which bounds the tables that graphs are captured with.
    max_batch
        Requests of a decode step at most. Graphs are captured for it and for the powers of two below it.
    """

    def __init__(self, model: Model, *, longest: int, max_batch: int) -> None:
        self.model: Final = model
        sizes = [1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch]
        # What ranks add up passes through the host here, and no graph can hold that.
        sizes = [*sizes, max_batch] if model.ranks == 1 else []
        self.graphs: Final = DecodeGraphs(self._captured, sizes, model.device)
        self._part: Final = model.part
        self._columns: Final[dict[Kind, int]] = {
            "full": -(-longest // model.shape.block_tokens),
            # A window of w tokens lies in at most so many blocks.
            "window": (model.shape.window - 2) // model.shape.block_tokens + 2,
            "state": 1,
        }
        self._caches: list[AttentionCache | StateCache] = []
        self._addresses: list[int] = []
        self.moved = 0
        """How often views were not where they had been."""

    def bind(self, views: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take the manager's views. Where they are not where they were, graphs that hold the old addresses go."""
        self._caches = bind(self._part, views)
        before, self._addresses = self._addresses, [part.data_ptr() for cache in self._caches for part in cache]
        if before and self._addresses != before:
            self.moved += 1
            self.graphs.forget()

    def unbind(self) -> None:
        """Let go of every view, so that nothing keeps memory which is to go. Graphs hold addresses, and stay."""
        self._caches = []

    def prefill(self, tokens: Sequence[int], start: int, blocks: Blocks) -> int:
        """Run tokens `start`, `start` + 1, ... of one request; give the token that follows the last of them."""
        positions = range(start, start + len(tokens))
        logits = self._forward([tokens], [positions], self._tables([(start, positions[-1], blocks)]))
        return int(logits.argmax(-1))

    def decode(self, rows: Sequence[Row]) -> list[int]:
        """Run one token of each of some requests; give the token that follows each."""
        tables = self._tables([(row.position, row.position, row.blocks) for row in rows])
        tokens, positions = [[row.token] for row in rows], [[row.position] for row in rows]
        logits = self.graphs.replay(tokens, positions, tables)
        if logits is None:
            logits = self._forward(tokens, positions, tables)
        following: list[int] = logits.argmax(-1).tolist()
        return following

    def capture(self) -> None:
        """Capture decode steps, where the device can."""
        self.graphs.capture(self._columns)

    def _captured(self, tokens: Tensor, positions: Tensor, tables: Mapping[Kind, Table]) -> Tensor:
        return self.model(tokens, positions, tables, self._caches)

    def _forward(
        self, tokens: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], tables: Mapping[Kind, Table]
    ) -> Tensor:
        device = self.model.device
        on_device = {kind: Table(*(part.to(device) for part in table)) for kind, table in tables.items()}
        return self.model(
            torch.tensor(tokens, device=device), torch.tensor(positions, device=device), on_device, self._caches
        )

    def _tables(self, spans: Sequence[tuple[int, int, Blocks]]) -> dict[Kind, Table]:
        """For each kind of layer the blocks that requests need, who write from a first to a last position."""
        return {kind: self._table(kind, spans) for kind in KINDS}

    def _table(self, kind: Kind, spans: Sequence[tuple[int, int, Blocks]]) -> Table:
        block_tokens, window = self.model.shape.block_tokens, self.model.shape.window
        rows, firsts = [], []
        for start, last, blocks in spans:
            first, stop = (0, 1) if kind == "state" else (0, last // block_tokens + 1)
            if kind == "window":
                first = max(0, start + 1 - window) // block_tokens
            rows.append(list(blocks[kind][first:stop]))
            firsts.append([first])
        columns = max(map(len, rows))
        # Slot 0 is the null block: what fills a row up is masked.
        return Table(torch.tensor([row + [0] * (columns - len(row)) for row in rows]), torch.tensor(firsts))
