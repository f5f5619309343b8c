"""Constraints that a warm-up needs: a batch that every model runs, and batches that belong to a kind of model.

A cache that cannot hold what warm-up runs makes an engine skip shapes silently, and measure too little. Every model
runs a context step. What else is run depends on the model, and comes from plug-ins: a rule for one model must not
reserve memory in all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning.layers import items_of
from vmmcache.planning.limits import MAX_SLOTS, as_size
from vmmcache.planning.workload import Batch, ConstraintPolicy, Request

__all__ = ["EngineLimits", "WarmupConstraint", "context_constraint", "warmup_constraints"]


class _LimitFields(NamedTuple):
    max_num_tokens: int
    max_seq_len: int
    max_batch_size: int
    model_type: str | None
    draft_tokens: int
    extra_tokens: int
    graph_batch_sizes: tuple[int, ...]
    explicit_ratio: bool
    keep_with_ratio: bool
    policy: ConstraintPolicy


class EngineLimits(_LimitFields):
    """What an engine will run at most.

    Parameters
    ----------
    max_num_tokens : int
        Tokens of one step.
    max_seq_len : int
        Tokens of one request.
    max_batch_size : int, default 1
        Requests of one step.
    model_type : str, optional
        As in the model's config.json.
    draft_tokens, extra_tokens : int, default 0
        Tokens of a decode step beside the one that is certain: speculated ones, and slots that the engine keeps free.
    graph_batch_sizes : iterable of int
        Batch sizes for which graphs are really captured; empty where graphs are off.
    explicit_ratio : bool, default False
        The caller splits the pools by a ratio of its own.
    keep_with_ratio : bool, default False
        Keep constraints that plug-ins would drop beside an explicit ratio.
    policy : ConstraintPolicy, default FIXED
        What may happen to a long request where the quota is small.

    Raises
    ------
    ConfigError
        A number is out of its range.
    """

    __slots__ = ()

    def __new__(
        cls,
        max_num_tokens: int,
        max_seq_len: int,
        max_batch_size: int = 1,
        *,
        model_type: str | None = None,
        draft_tokens: int = 0,
        extra_tokens: int = 0,
        graph_batch_sizes: Iterable[int] = (),
        explicit_ratio: bool = False,
        keep_with_ratio: bool = False,
        policy: ConstraintPolicy = ConstraintPolicy.FIXED,
    ) -> EngineLimits:
        """Check, and freeze."""
        return super().__new__(
            cls,
            as_size("max_num_tokens", max_num_tokens, minimum=1, unit="tokens"),
            as_size("max_seq_len", max_seq_len, minimum=1, unit="tokens"),
            as_size("max_batch_size", max_batch_size, minimum=1, maximum=MAX_SLOTS, unit="requests"),
            model_type,
            as_size("draft_tokens", draft_tokens, unit="tokens"),
            as_size("extra_tokens", extra_tokens, unit="tokens"),
            tuple(as_size("graph_batch_sizes", size, minimum=1, unit="requests") for size in graph_batch_sizes),
            bool(explicit_ratio),
            bool(keep_with_ratio),
            Request(0, policy=policy).policy,
        )

    @property
    def decode_tokens(self) -> int:
        """Tokens that a decode step writes for one request."""
        return 1 + self.draft_tokens + self.extra_tokens


class WarmupConstraint(NamedTuple):
    """What a plug-in provides through the hook ``vmmcache_warmup_constraints``."""

    name: str
    model_types: frozenset[str]
    """Models that it belongs to."""
    batches: Callable[[EngineLimits], Sequence[Batch]]
    """The batches that such a model's warm-up runs; none where it runs no more than the context step."""


def context_constraint(limits: EngineLimits) -> Batch:
    """One request that fills a step with prompt tokens: what every model's warm-up runs."""
    return Batch([Request(min(limits.max_num_tokens, limits.max_seq_len), 0)])


def warmup_constraints(limits: EngineLimits, records: Iterable[WarmupConstraint] = ()) -> list[Batch]:
    """The context constraint, and those of the plug-ins that belong to the model.

    Raises
    ------
    ConfigError
        A record is none, or yields something that is no Batch; the error names the plug-in's constraint.
    """
    batches = [context_constraint(limits)]
    for record in records:
        if not isinstance(record, WarmupConstraint):
            raise ConfigError("warmup_constraints", record, "plug-ins must yield WarmupConstraint records")
        if limits.model_type in record.model_types:
            batches += items_of(f"warmup_constraints[{record.name!r}]", record.batches(limits), Batch, "Batch")
    return batches
