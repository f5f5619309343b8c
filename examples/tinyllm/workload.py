"""What the engine is asked for, and a digest of what it answers."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import torch

__all__ = ["LONGEST", "Request", "digest", "requests"]

_PROMPTS: Final = (16, 112)
_ANSWERS: Final = (12, 48)
LONGEST: Final = _PROMPTS[1] + _ANSWERS[1]
"""Tokens of the longest request, prompt and answer."""


class Request(NamedTuple):
    """One prompt to complete."""

    number: int
    """Its place in the queue; the lower, the older."""
    prompt: tuple[int, ...]
    answer: int
    """Tokens to generate."""


def requests(number: int, *, vocabulary: int, seed: int = 0) -> list[Request]:
    """Draw requests of different lengths. The n-th one is the same however many there are."""
    drawn = []
    for place in range(number):
        dice = torch.Generator().manual_seed(seed * 1_000_003 + place)
        prompt, answer = (int(torch.randint(low, high + 1, (), generator=dice)) for low, high in (_PROMPTS, _ANSWERS))
        tokens = torch.randint(vocabulary, (prompt,), generator=dice).tolist()
        drawn.append(Request(place, tuple(tokens), answer))
    return drawn


def digest(answers: Mapping[int, Sequence[int]]) -> str:
    """SHA-256 over every answer in the order of the requests' numbers, each with its number and its length before it.

    Tokens are taken as 32-bit little-endian numbers.
    """
    hashed = hashlib.sha256()
    for number in sorted(answers):
        words = array("i", [number, len(answers[number]), *answers[number]])
        hashed.update(words.tobytes())
    return hashed.hexdigest()
