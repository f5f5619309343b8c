"""Warm-up constraint of the DeepSeek V4 kind: one longest decode beside short requests.

Warm-up of such a model runs decode batches with one request at its full length and every other one as short as a
decode step allows. A cache that cannot hold this batch skips graphs. The constraint stands in a plug-in and not in the
planner: as a floor for every model it would reserve memory for lengths that most engines never serve together.
"""

from __future__ import annotations

from collections.abc import Sequence

from vmmcache.planning import Batch, EngineLimits, Request, WarmupConstraint

__all__ = ["CONSTRAINT", "longest_decode"]

MODEL_TYPES = frozenset({"deepseek_v4"})


def longest_decode(limits: EngineLimits) -> Sequence[Batch]:
    """One request of max_seq_len tokens and short ones, as many as the largest graph really captured has.

    None where graphs are off. None beside an explicit pool ratio either, unless the limits say `keep_with_ratio`: who
    sets a ratio by hand has sized the pools, and the floor would move them.
    """
    if not limits.graph_batch_sizes or (limits.explicit_ratio and not limits.keep_with_ratio):
        return ()
    batch_size = min(limits.max_batch_size, max(limits.graph_batch_sizes))
    written = min(limits.decode_tokens, limits.max_seq_len)
    requests = [Request(limits.max_seq_len, limits.max_seq_len - written, limits.policy)]
    if batch_size > 1:
        requests.append(Request(written, 0, count=batch_size - 1))
    return (Batch(requests),)


CONSTRAINT = WarmupConstraint("deepseek-longest-decode", MODEL_TYPES, longest_decode)
