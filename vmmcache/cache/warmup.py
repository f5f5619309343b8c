"""What warm-up ran: a margin is only as good as the shapes that were seen.

A peak that no shape has shown is a peak that nobody has measured. So the log says which shapes ran, which were left out
and why, and which nobody mentioned.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from vmmcache.errors import ConfigError
from vmmcache.planning.warmup import EngineLimits
from vmmcache.units import as_count

__all__ = ["PROMPT_LOGPROBS_ROWS", "Exercised", "Skipped", "WarmupLog", "WarmupShape", "wrap_slots"]

PROMPT_LOGPROBS_ROWS: Final = 1024
"""Rows of a prompt-logprobs chunk, each as wide as the vocabulary: what warm-up runs, and what serving may run."""

_LARGEST: Final = {"int8": 127, "uint8": 255, "int16": 2**15 - 1, "uint16": 2**16 - 1}

Ids = TypeVar("Ids")
Fact = int | float | str | bool

_log: Final = logging.getLogger(__name__)


class WarmupShape(StrEnum):
    """What serving runs, and warm-up therefore has to run (S6)."""

    MIXED_STEP = "mixed_step"
    """Prefill and decode in one step of the most tokens that a step may have."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """Logits of `PROMPT_LOGPROBS_ROWS` prompt tokens over the whole vocabulary."""
    SAMPLER = "sampler"
    """The sampler over a full batch."""
    REJECTION_SAMPLER = "rejection_sampler"
    """The rejection sampler of speculative decoding over a full batch."""
    ENCODER = "encoder"
    """The encoder of a multimodal model over its largest input."""
    LARGEST_GRAPH = "largest_graph"
    """The graph of the largest batch that is captured."""


class Exercised(NamedTuple):
    """A shape that ran."""

    shape: WarmupShape
    facts: Mapping[str, Fact]


class Skipped(NamedTuple):
    """A shape that was left out, or ran too small to count."""

    shape: WarmupShape
    reason: str


class WarmupLog:
    """Records what warm-up ran.

    Parameters
    ----------
    limits : EngineLimits, optional
        What serving will run at most. A shape that is reported with fewer tokens, rows or requests than that has not
        shown the peak: it is noted, with a warning, and stays missing.
    """

    def __init__(self, limits: EngineLimits | None = None) -> None:
        self._least: Final = _least(limits)
        self._ran: Final[dict[WarmupShape, Exercised]] = {}
        self._skipped: Final[dict[WarmupShape, Skipped]] = {}

    def ran(self, shape: str, **facts: Fact) -> None:
        """Note that a shape ran, with what there is to say about it: ``tokens=8192``, ``requests=256``, ``rows=1024``.

        Raises
        ------
        ConfigError
            There is no such shape, or a fact is neither a number nor a text.
        """
        known = _shape(shape)
        for name, value in facts.items():
            if not isinstance(value, Fact):
                raise ConfigError(name, value, f"a fact about {known.value!r} must be a number or a text")
        short = [
            f"{name}={facts[name]} of {least}"
            for name, least in self._least.get(known, {}).items()
            if isinstance(facts.get(name), (int, float)) and facts[name] < least  # type: ignore[operator]  # a number
        ]
        if short:
            self._leave_out(known, f"ran too small to count, with {' and '.join(short)}")
            return
        self._ran[known] = Exercised(known, MappingProxyType(dict(facts)))
        self._skipped.pop(known, None)

    def skipped(self, shape: str, reason: str) -> None:
        """Note that a shape was left out, and why. Logs a warning, unless the shape has run."""
        self._leave_out(_shape(shape), reason)

    @property
    def exercised(self) -> tuple[Exercised, ...]:
        """Shapes that ran, in the order of `WarmupShape`."""
        return tuple(self._ran[shape] for shape in WarmupShape if shape in self._ran)

    @property
    def left_out(self) -> tuple[Skipped, ...]:
        """Shapes that did not run, with the reason."""
        return tuple(self._skipped[shape] for shape in WarmupShape if shape in self._skipped)

    @property
    def missing(self) -> tuple[WarmupShape, ...]:
        """Shapes of which nobody has said anything."""
        return tuple(shape for shape in WarmupShape if shape not in self._ran and shape not in self._skipped)

    def _leave_out(self, shape: WarmupShape, reason: str) -> None:
        if shape in self._ran:
            return
        if not reason:
            raise ConfigError("reason", reason, f"say why {shape.value!r} was not run")
        self._skipped[shape] = Skipped(shape, reason)
        _log.warning("warm-up did not run %s: %s; its peak is not in the margin", shape.value, reason)


def wrap_slots(ids: Ids, committed: int) -> Ids:
    """Bring slot ids of dummy work into the slots that are committed.

    Dummy work takes ids as they come, and past the committed prefix there are addresses without memory: a kernel that
    touches them ends the process. Ids below `committed` stay as they are, so 0, the null block, stays 0; others wrap
    around among 1 to ``committed - 1``, so that nothing but 0 becomes 0; negative ids, which stand for no slot, stay.

    Parameters
    ----------
    ids : int or sequence of int
        Also an array of the standard library, of numpy or of torch. A tensor stays on its device, and nothing waits for
        the device.
    committed : int
        Slots that are committed; at least 1.

    Returns
    -------
    Same kind as `ids`; a new one.

    Raises
    ------
    ConfigError
        `committed` is below 1, or the ids are no whole numbers.

    Examples
    --------
    >>> wrap_slots([0, 1, 9, 10, 11, -1], 10)
    [0, 1, 9, 1, 2, -1]
    """
    committed = as_count("committed", committed, minimum=1, unit="slots")
    wrapped: Any
    if isinstance(ids, array):
        wrapped = array(ids.typecode, [_wrapped("ids", number, committed) for number in ids])
    elif isinstance(ids, (list, tuple, range)):
        numbers = [_wrapped(f"ids[{index}]", number, committed) for index, number in enumerate(ids)]
        wrapped = tuple(numbers) if isinstance(ids, tuple) else numbers
    elif hasattr(ids, "dtype"):
        wrapped = _wrapped_tensor(ids, committed)
    else:
        wrapped = _wrapped("ids", ids, committed)
    result: Ids = wrapped
    return result


def _wrapped(field: str, number: object, committed: int) -> int:
    value = as_count(field, number, minimum=-(2**63), unit="slots")
    return value if value < committed else 1 + (value - 1) % (committed - 1) if committed > 1 else 0


def _wrapped_tensor(ids: Any, committed: int) -> Any:
    """The same, by arithmetic that torch and numpy share, so that neither needs to be here."""
    if "int" not in str(ids.dtype):
        raise ConfigError("ids", ids, f"slot ids are whole numbers, not {ids.dtype}")
    if _LARGEST.get(str(ids.dtype).removeprefix("torch."), committed) < committed:
        return ids + 0  # none of these can be beyond, and the count itself is no number of their kind
    beyond = ids >= committed
    inside = (ids - 1) % max(1, committed - 1) + min(1, committed - 1)
    return ids * ~beyond + inside * beyond


def _shape(name: str) -> WarmupShape:
    for shape in WarmupShape:
        if name == shape.value:
            return shape
    raise ConfigError("shape", name, "must be one of " + ", ".join(WarmupShape))


def _least(limits: EngineLimits | None) -> dict[WarmupShape, dict[str, int]]:
    rows = PROMPT_LOGPROBS_ROWS if limits is None else min(PROMPT_LOGPROBS_ROWS, limits.max_num_tokens)
    least = {WarmupShape.PROMPT_LOGPROBS: {"rows": rows}}
    if limits is not None:
        least[WarmupShape.MIXED_STEP] = {"tokens": limits.max_num_tokens}
        for shape in (WarmupShape.SAMPLER, WarmupShape.REJECTION_SAMPLER):
            least[shape] = {"requests": limits.max_batch_size}
        if limits.graph_batch_sizes:
            least[WarmupShape.LARGEST_GRAPH] = {"requests": max(limits.graph_batch_sizes)}
    return least
