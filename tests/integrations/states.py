"""Key states whose numbers say which token they are of, and what a cache of them takes."""

from __future__ import annotations

from typing import Any, Final

import torch

from tests.fine_host import FINE
from vmmcache.integrations.transformers import Settings
from vmmcache.testing import RecordingDriver

__all__ = ["PER_GRANULE", "ROW", "RUNS", "by_token", "count", "states"]

ROW: Final = 1024
"""Bytes of the keys of one token: two sequences, two heads of 64 numbers."""
PER_GRANULE: Final = FINE // ROW
RUNS: Final = {"tokens": 1, "heads": 4}
"""Of the keys of a layer, and as many of its values."""


def states(tokens: int, first: int = 0, batch: int = 2) -> torch.Tensor:
    """[batch, 2, tokens, 64]; every number of a token is different, and says which token it is."""
    numbers = torch.arange(first * ROW // 4, (first + tokens) * ROW // 4, dtype=torch.float32)
    return numbers[: tokens * batch * 128].reshape(tokens, batch, 2, 64).permute(1, 2, 0, 3)


def by_token(max_length: int, driver: Any, **changes: Any) -> Settings:
    """Settings of layers in which keys are one run, and values another, so that what they take is easily counted."""
    return Settings(max_length, driver, layout="tokens", **changes)


def count(driver: RecordingDriver, verb: str) -> int:
    """How often a verb was called."""
    return sum(call.verb == verb for call in driver.journal)
