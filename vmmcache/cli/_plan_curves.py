"""What other quotas would buy: a few dozen plans, which take a few milliseconds together."""

from __future__ import annotations

from typing import NamedTuple

from vmmcache.cli._plan_subject import Subject
from vmmcache.errors import ConfigError, PlanError
from vmmcache.planning import Plan
from vmmcache.planning.limits import MAX_SIZE
from vmmcache.units import align_up

__all__ = ["Curve", "curves_of", "ticks"]

POINTS = 48


class Curve(NamedTuple):
    """One figure over the quota."""

    title: str
    points: tuple[tuple[int, int], ...]
    """Quota in bytes, figure."""
    now: int
    """The figure at the planned quota."""
    limit: int | None = None
    limit_name: str = ""


def curves_of(subject: Subject, planned: Plan) -> list[Curve]:
    """The curves that say something about a plan: tokens, and requests where their length is known."""
    assert planned.quota is not None
    reach = planned.quota * 3 // 2
    quotas = sorted({align_up(max(1, reach * step // POINTS), planned.granule) for step in range(POINTS + 1)})
    tokens, requests = [], []
    for quota in (*quotas, planned.quota):
        try:
            capacity = subject.capacity(subject.at(quota))
        except (PlanError, ConfigError):
            # Below the floors, or beyond what can be counted: the curve starts or ends here.
            continue
        tokens.append((quota, capacity.longest_in_memory))
        requests.append((quota, capacity.requests))
    curves = []
    now = subject.capacity(planned)
    if now.longest_in_memory < MAX_SIZE:
        limit = subject.upper if subject.upper < MAX_SIZE else None
        title = "longest single request, tokens, over the quota"
        curves.append(Curve(title, tuple(sorted(tokens)), now.longest_in_memory, limit, "the model's limit"))
    if subject.length is not None:
        title = f"requests of {subject.length:,} tokens at a time"
        curves.append(Curve(title, tuple(sorted(requests)), now.requests))
    return curves


def ticks(largest: int, *, binary: bool) -> list[int]:
    """Round values from 0 to at least `largest`, about five of them.

    >>> ticks(96, binary=False), ticks(90 << 30, binary=True)[-1] >> 30
    ([0, 20, 40, 60, 80, 100], 96)
    """
    step = 1
    while largest > 6 * step:
        if binary:
            step *= 2
        else:
            step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return [step * number for number in range(-(-largest // step) + 1)]
