"""What ranks cost that agree: messages and bytes at the store that they share, and the time that they take by a model.

Counted are the requests that ranks make, each with its answer. The count is checked in the same run: groups of 2, 4 and
8 ranks agree over a real TCPStore, and both must be equal to the byte. Up to 16,384 ranks it is computed.

The time is a model and no measurement: a chain of hops that no number of ranks makes longer, what the store has to
handle one after the other, and its share of the network. Beside it stands a ring all-reduce, 2 (n - 1) steps in which
every rank sends one message: the algorithm's published count, not ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from vmmcache.benchmarks._rank_messages import GATHERED, LIFE, Cost, cost, life
from vmmcache.benchmarks._rank_wire import counted
from vmmcache.benchmarks.harness import Row

__all__ = ["NEEDS", "TITLE", "measure"]

TITLE: Final = "Ranks (time by a model: 25 us a hop, 1.25 GB/s and 5 us a message at the store)"
NEEDS: Final = ("torch",)

LATENCY_S: Final = 25e-6
"""From one machine to another of one rack."""
BANDWIDTH: Final = 1.25e9
"""Bytes a second of the store's machine: 10 Gbit/s."""
HANDLING_S: Final = 5e-6
"""Of one message at the store, which handles one after the other."""

LINEAR: Final = 1.05
"""Power of the number of ranks; above 1 only because longer numbers of ranks have more digits."""

COUNTED: Final = (2, 4, 8)
SIZES: Final = (2, 4, 8, 64, 512, 4096, 16384)


def seconds_of(spent: Cost, agreements: int = 1) -> float:
    """By the model. Of the last to come: add, multi_get with its wait, compare_set; of another: to be woken, get."""
    hops = 2 + 4 + 2 + 1 + 4
    return agreements * hops * LATENCY_S + spent.messages * HANDLING_S + spent.nbytes / BANDWIDTH


def measure() -> Sequence[Row]:
    """Each agreement of a manager's life, and the whole of it, by the number of ranks."""
    rows = []
    for size in COUNTED:
        for number, (agreement, seen) in enumerate(zip(LIFE, counted(size), strict=True), 1):
            computed = cost(agreement, number, size)
            for unit, figure, of_wire in (
                ("messages", computed.messages, seen.messages),
                ("bytes", computed.nbytes, seen.nbytes),
            ):
                name = f"{agreement.stage}, {size} ranks"
                rows.append(Row(name, figure, unit, "counted", of_wire, figure - of_wire, "= 0", figure == of_wire))
    for agreement in (*LIFE, GATHERED):
        figures = {size: cost(agreement, 2, size) for size in (512, 4096, 16384)}
        for size in 512, 16384:
            name = f"{agreement.stage}, {size:,} ranks"
            rows.append(Row(name, figures[size].nbytes / 1e6, "MB"))
            rows.append(Row(name, seconds_of(figures[size]) * 1e3, "ms by the model"))
        growth = math.log(figures[16384].nbytes / figures[4096].nbytes, 4)
        name = f"{agreement.stage}: bytes grow with this power of the ranks"
        judged = agreement is not GATHERED
        target = f"<= {LINEAR:g}" if judged else None
        rows.append(Row(name, growth, "", judged=growth, target=target, held=growth <= LINEAR if judged else None))
    for size in SIZES:
        spent = life(size)
        ring = len(LIFE) * size * 2 * (size - 1)
        rows.append(Row(f"a manager's life, {size:,} ranks", spent.messages, "messages", "ring all-reduces", ring))
        rows.append(Row(f"a manager's life, {size:,} ranks", spent.nbytes / 1e6, "MB"))
        took = seconds_of(spent, len(LIFE)) * 1e3
        steps = len(LIFE) * 2 * (size - 1) * (LATENCY_S + HANDLING_S) * 1e3
        rows.append(Row(f"a manager's life, {size:,} ranks", took, "ms by the model", "ring all-reduces", steps))
    each = [life(size).messages / size for size in SIZES]
    few, many = each[0], each[-1]
    name = f"messages a rank in a manager's life, {SIZES[-1]:,} ranks"
    rows.append(Row(name, many, "", f"{SIZES[0]} ranks", few, many / few, "<= 1 times", many <= few))
    return rows
