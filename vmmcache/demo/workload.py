"""How much work the demo does: enough requests that every layer's memory really grows at least `GROWTHS` times.

A cache grows block by block, but memory comes by the granule. So the work is planned backwards: from the granule to the
blocks that must be in use at the end, from those to prompts of different lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vmmcache.units import KIB

__all__ = ["GROWTHS", "Workload", "choose_block_tokens", "plan_workload"]

GROWTHS: Final = 3
"""Times that every layer gets another granule after its first."""

_SMALL_BLOCK: Final = 64 * KIB
_TOKENS_PER_REQUEST: Final = 64
_SPREAD: Final = 32
_SHORTEST_TYPICAL: Final = 16


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that join a running batch one after another, then decode together."""

    block_tokens: int
    steps: int
    """Decode steps; in each, every request that has joined gets one more token."""
    prompts: tuple[int, ...]
    """Tokens of each request's prompt."""
    joins: tuple[int, ...]
    """The decode step before which each request joins."""

    @property
    def blocks(self) -> int:
        """Blocks in use after the last step."""
        return sum(-(-length // self.block_tokens) for length in self.lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that each request has in the cache after the last step."""
        return tuple(prompt + self.steps - join for prompt, join in zip(self.prompts, self.joins, strict=True))


def choose_block_tokens(token_bytes: int) -> int:
    """Give the tokens of a block: 16 as engines do, more where a block of one layer would stay below 64 KiB.

    Parameters
    ----------
    token_bytes
        Bytes of one token's keys and values in one layer.
    """
    tokens = 16
    while tokens * token_bytes < _SMALL_BLOCK and tokens < 1024:
        tokens *= 2
    return tokens


def plan_workload(*, block_bytes: int, block_tokens: int, granule: int, steps: int) -> Workload:
    """Plan requests whose blocks fill a little more than `GROWTHS` of one layer's granules.

    Parameters
    ----------
    block_bytes
        Bytes of one block of one layer.
    block_tokens
        Tokens of a block.
    granule
        Bytes in which the driver maps memory.
    steps
        Decode steps.
    """
    # A quarter of a granule beyond the last border, so that the last growth is not the last thing that happens.
    wanted = -(-(4 * GROWTHS + 1) * granule // (4 * block_bytes))
    # Requests of about 64 tokens each: with large blocks many requests of one block, with small ones few of several.
    requests = -(-wanted // max(1, _TOKENS_PER_REQUEST // block_tokens))
    joins = tuple(request * ((steps + 1) // 2) // requests for request in range(requests))
    # Lengths from three quarters of the typical one to five quarters, in an order that looks like traffic.
    typical = _SHORTEST_TYPICAL
    while True:
        prompts = tuple(
            max(1, typical * (3 * _SPREAD // 2 + request * 13 % _SPREAD) // (2 * _SPREAD))
            for request in range(requests)
        )
        work = Workload(block_tokens, steps, prompts, joins)
        if work.blocks >= wanted:
            return work
        typical += 1
