"""A batch of requests, decoded over two caches at once, with every step's logits compared bit for bit.

Both caches see the same tokens and the same block tables, so the first step at which they differ is the step at which
one of them gave back something else than was written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from vmmcache.demo.caches import FullCache, GrowingCache
from vmmcache.demo.decoder import Decoder
from vmmcache.demo.workload import Workload

__all__ = ["Difference", "Request", "Serving"]


@dataclass(slots=True)
class Request:
    """One request in the batch."""

    prompt: list[int]
    tokens: list[int]
    """The prompt and what was decoded; the last one is not in the cache yet."""
    blocks: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the logits of the two caches differed for the first time."""

    step: str
    largest: float | None
    """Largest absolute difference of two logits; None where one of them is no number."""


@dataclass(frozen=True, slots=True)
class _Run:
    tokens: Tensor
    positions: Tensor
    blocks: list[list[int]]
    name: str


class Serving:
    """Requests over a growing cache and over a reference of full size.

    Parameters
    ----------
    decoder
        The model, the same for both.
    cache, reference
        The two caches, empty.
    workload
        Which requests join when.
    seed
        Of the prompts' tokens.
    """

    def __init__(
        self, decoder: Decoder, cache: GrowingCache, reference: FullCache, workload: Workload, *, seed: int = 0
    ) -> None:
        self._decoder: Final = decoder
        self._cache: Final = cache
        self._reference: Final = reference
        self._workload: Final = workload
        dice = torch.Generator().manual_seed(seed)
        vocabulary = decoder.shape.vocabulary
        prompts = [torch.randint(vocabulary, (size,), generator=dice).tolist() for size in workload.prompts]
        self._waiting = [Request(prompt, list(prompt)) for prompt in prompts]
        self.running: Final[list[Request]] = []
        self.prompts: Final[list[tuple[_Run, Tensor]]] = []
        """Every prompt's run, with the logits that the reference gave."""
        self.step = 0
        self.compared = 0
        self.difference: Difference | None = None
        self._blocks_in_use = 0

    def admit(self) -> None:
        """Take in the requests that join before this step, and run their prompts."""
        while self._waiting and self._workload.joins[len(self.running)] <= self.step:
            request = self._waiting.pop(0)
            self.running.append(request)
            self._make_room(request, len(request.prompt))
            tokens, positions = torch.tensor([request.prompt]), torch.arange(len(request.prompt))[None]
            # A copy: the request's own list grows, and a prompt run again over a longer row might round otherwise.
            run = _Run(tokens, positions, [list(request.blocks)], f"prompt of request {len(self.running) - 1}")
            logits = self._compare(run)
            self.prompts.append((run, logits))
            request.tokens.append(int(logits.argmax()))

    def decode(self) -> None:
        """Give every running request one more token."""
        for request in self.running:
            self._make_room(request, len(request.tokens))
        tokens = torch.tensor([request.tokens[-1:] for request in self.running])
        positions = torch.tensor([[len(request.tokens) - 1] for request in self.running])
        run = _Run(tokens, positions, [request.blocks for request in self.running], f"decode step {self.step}")
        for request, token in zip(self.running, self._compare(run).argmax(-1).tolist(), strict=True):
            request.tokens.append(token)
        self.step += 1

    def replay(self) -> bool:
        """Run every prompt again over the growing cache; say whether all give the reference's logits again."""
        return all(torch.equal(self._forward(run, self._cache.layers), logits) for run, logits in self.prompts)

    def _make_room(self, request: Request, length: int) -> None:
        while len(request.blocks) * self._workload.block_tokens < length:
            if self._blocks_in_use == self._cache.blocks:
                self._cache.grow(self.step)
            request.blocks.append(self._blocks_in_use)
            self._blocks_in_use += 1

    def _compare(self, run: _Run) -> Tensor:
        """Run over both caches, compare, and give the reference's logits: a wrong cache must not steer what follows."""
        expected = self._forward(run, self._reference.layers)
        found = self._forward(run, self._cache.layers)
        self.compared += 1
        if self.difference is None and not torch.equal(found, expected):
            largest = float((found - expected).abs().max())
            self.difference = Difference(run.name, largest if math.isfinite(largest) else None)
        return expected

    def _forward(self, run: _Run, layers: list[Tensor]) -> Tensor:
        most = max(len(blocks) for blocks in run.blocks)
        # What a shorter table is filled up with is masked: any block will do.
        tables = torch.tensor([blocks + [0] * (most - len(blocks)) for blocks in run.blocks])
        device = self._decoder.device
        return self._decoder(run.tokens.to(device), run.positions.to(device), tables.to(device), layers)
