"""How many bytes a cache gets: from what was measured after warm-up, or from what was estimated.

Pure functions of snapshots and settings. All numbers are whole bytes; shares are rationals, rounded down once. With

======================  ==============================================================================================
``headroom``            ``free + committed``: what the device has for the cache, with what the cache has already (the
                        committed bytes are in use, and would be charged twice without adding them)
``non_kv``              ``init_headroom - headroom``: what everything else has taken since the start; at the start
                        nothing is committed, so that is ``init_free - free - committed``
``requested``           ``utilization * total``
``transient_peak``      reserved peak - live bytes, the larger of profiling and warm-up: what comes and goes in a step
``margin``              ``max(margin_floor, margin_fraction * transient_peak)``
======================  ==============================================================================================

the budgets are::

    measured  = max(0, min(requested - non_kv, headroom - margin) - transient_peak)
    estimated = max(0, min(requested - non_kv, headroom) - transient_peak - graph_estimate)
    warm-up   = max(0, min(requested - non_kv, headroom) - margin - max(transient_peak, warmup_reserve * the minimum))

The first is vLLM's for its growable cache (pull request 56492), and so is the third; the second is vLLM's profiling
(release 0.33) with what the temporary pool really took added back, as TensorRT-LLM does. In own words, and with two
bounds of ours, because free memory is the device's and not only ours (S14): ``non_kv`` is at least 0, so that a
neighbour who leaves does not lift the cap that the caller set, and ``headroom`` is at most ``total``.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Literal, NamedTuple

from vmmcache.cache.budget import MemoryBudget, Mode
from vmmcache.cache.snapshots import Snapshot
from vmmcache.planning.exact import as_exact

__all__ = ["Budget", "committable", "default_estimate", "estimated_budget", "measured_budget", "temporary_quota"]


class Budget(NamedTuple):
    """A byte budget and every term of it, in bytes."""

    mode: Mode
    nbytes: int
    """What the cache gets; 0 where nothing is left."""
    total: int
    """Memory of the device."""
    utilization: Fraction
    requested: int
    """Share of `total` that the process may use."""
    non_kv: int
    """What everything beside the cache has taken since the start."""
    headroom: int
    """Free, and committed to the cache."""
    margin: int
    transient_peak: int
    graph_estimate: int
    limited_by: Literal["utilization", "memory"]
    """Which of the two caps decides: the share that was asked for, or what the device has left."""


class _Terms(NamedTuple):
    utilization: Fraction
    requested: int
    non_kv: int
    headroom: int


def measured_budget(settings: MemoryBudget, initial: Snapshot, now: Snapshot, transient_peak: int) -> Budget:
    """The budget after warm-up (S2).

    Parameters
    ----------
    settings : MemoryBudget
        Utilization, fraction and floor of the margin.
    initial, now : Snapshot
        From before anything of the engine was on the device that is to count, and from after warm-up. `now.committed`
        are the bytes that are mapped for the cache.
    transient_peak : int
        Bytes; the larger of profiling and warm-up.
    """
    terms = _terms(settings, "measured", initial, now)
    margin, peak = _margin(settings, transient_peak), max(0, transient_peak)
    by_share, by_memory = terms.requested - terms.non_kv, terms.headroom - margin
    return Budget(
        mode="measured",
        nbytes=max(0, min(by_share, by_memory) - peak),
        total=now.total,
        **terms._asdict(),
        margin=margin,
        transient_peak=peak,
        graph_estimate=0,
        limited_by="utilization" if by_share < by_memory else "memory",
    )


def estimated_budget(settings: MemoryBudget, initial: Snapshot, now: Snapshot, transient_peak: int) -> Budget:
    """The budget after profiling with a temporary pool (S4). No margin: that is what the default 0.92 is for.

    Parameters
    ----------
    settings : MemoryBudget
        Utilization, and the graph estimate of the caller.
    initial, now : Snapshot
        From before anything of the engine was on the device that is to count, and from after profiling, with the
        temporary pool still there. `now.committed` are the bytes that the pool really took, which need not be those
        that it was planned to take.
    transient_peak : int
        Bytes, measured while the temporary pool is there.
    """
    terms = _terms(settings, "estimated", initial, now)
    peak = max(0, transient_peak)
    by_share = terms.requested - terms.non_kv
    return Budget(
        mode="estimated",
        nbytes=max(0, min(by_share, terms.headroom) - peak - settings.graph_estimate),
        total=now.total,
        **terms._asdict(),
        margin=0,
        transient_peak=peak,
        graph_estimate=settings.graph_estimate,
        limited_by="utilization" if by_share < terms.headroom else "memory",
    )


def default_estimate(settings: MemoryBudget, initial: Snapshot, now: Snapshot, transient_peak: int) -> Budget:
    """What the estimated path would have given on the snapshots of a measurement, at its own default utilization."""
    plain = replace(settings, utilization=None, nbytes=None, slots=None)
    return estimated_budget(plain, initial, now, transient_peak)


def committable(settings: MemoryBudget, initial: Snapshot, now: Snapshot, transient_peak: int = 0) -> int:
    """Bytes that the cache may have in all while warm-up runs; what it has committed already is among them (S10).

    Never more than `measured_budget` of the same snapshots: what is committed for warm-up can stay.
    """
    return _before_warm_up(settings, "measured", initial, now, transient_peak)


def temporary_quota(settings: MemoryBudget, initial: Snapshot, now: Snapshot) -> int:
    """Bytes for the pool that profiling runs on, on the estimated path (S4).

    Room for a step is kept as for a warm-up, and what the caller declared for an encoder, which runs while the pool is
    there and whose need shows in the profiled peak only afterwards.
    """
    return max(0, _before_warm_up(settings, "estimated", initial, now, 0) - settings.encoder_reserve)


def _before_warm_up(settings: MemoryBudget, mode: Mode, initial: Snapshot, now: Snapshot, transient_peak: int) -> int:
    terms = _terms(settings, mode, initial, now)
    within = max(0, min(terms.requested - terms.non_kv, terms.headroom))
    reserve = max(0, transient_peak, _share(as_exact("warmup_reserve", settings.warmup_reserve), within))
    return max(0, within - _margin(settings, transient_peak) - reserve)


def _terms(settings: MemoryBudget, mode: Mode, initial: Snapshot, now: Snapshot) -> _Terms:
    utilization = settings.utilization_on(mode)
    headroom = _headroom(now)
    return _Terms(
        utilization=utilization,
        requested=_share(utilization, now.total),
        non_kv=max(0, _headroom(initial) - headroom),
        headroom=headroom,
    )


def _headroom(snapshot: Snapshot) -> int:
    return min(max(0, snapshot.free) + snapshot.committed, snapshot.total)


def _margin(settings: MemoryBudget, transient_peak: int) -> int:
    fraction = as_exact("margin_fraction", settings.margin_fraction)
    return max(settings.margin_floor, _share(fraction, max(0, transient_peak)))


def _share(share: Fraction, nbytes: int) -> int:
    return nbytes * share.numerator // share.denominator
