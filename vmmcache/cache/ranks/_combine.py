"""What becomes of the things that all ranks hand in: pure functions, so that any rank may do it for the others."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final, Literal

from vmmcache.cache.ranks.merging import merge_measurements
from vmmcache.errors import ConfigError

__all__ = ["Kind", "combined", "items_from", "packed", "text_of"]

Kind = Literal["gather", "join", "minimum", "reason", "step"]

_RUN: Final = struct.Struct("<II")


def combined(kind: Kind, payloads: Sequence[bytes]) -> bytes:
    """One answer out of the payloads of all ranks, in the order of ranks.

    Raises
    ------
    ConfigError
        They do not go together.
    """
    return _COMBINE[kind](payloads)


def packed(items: Sequence[bytes]) -> bytes:
    """Several byte strings in one; `items_from` takes them apart.

    Equal ones in a row are written once: mostly all ranks say the same, and every rank reads what all have said.
    """
    return b"".join(_RUN.pack(len(list(run)), len(item)) + item for item, run in groupby(items))


def items_from(data: bytes) -> list[bytes]:
    """What `packed` has put together."""
    items = []
    at = 0
    while at < len(data):
        times, length = _RUN.unpack_from(data, at)
        at += _RUN.size + length
        items += [data[at - length : at]] * times
    return items


def text_of(value: object) -> bytes:
    """JSON of a value, as short as it gets."""
    return json.dumps(value, separators=(",", ":")).encode()


def _minimum(payloads: Sequence[bytes]) -> bytes:
    rows: list[list[int]] = [json.loads(payload) for payload in payloads]
    lengths = [len(row) for row in rows]
    if len(set(lengths)) > 1:
        raise ConfigError("values", lengths, "numbers of values that ranks hand in: all must hand in as many")
    return text_of([min(column) for column in zip(*rows, strict=True)])


def _reason(payloads: Sequence[bytes]) -> bytes:
    for rank, payload in enumerate(payloads):
        if (reason := json.loads(payload)) is not None:
            return text_of(reason if len(payloads) == 1 else f"rank {rank}: {reason}")
    return text_of(None)


def _step(payloads: Sequence[bytes]) -> bytes:
    said = [json.loads(payload) for payload in payloads]
    refusals = [[rank, refusal] for rank, (_, refusal) in enumerate(said) if refusal is not None]
    numbers = [] if refusals or not any(mine for mine, _ in said) else merge_measurements([mine for mine, _ in said])
    return text_of([numbers, refusals])


def _join(payloads: Sequence[bytes]) -> bytes:
    if len(set(payloads)) > 1:
        versions = [payload.decode() for payload in payloads]
        raise ConfigError("ranks", versions, "versions of the agreement: run the same vmmcache on every rank")
    return payloads[0]


_COMBINE: Final[Mapping[Kind, Callable[[Sequence[bytes]], bytes]]] = {
    "gather": packed,
    "join": _join,
    "minimum": _minimum,
    "reason": _reason,
    "step": _step,
}
