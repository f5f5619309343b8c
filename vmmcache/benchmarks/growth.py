"""How many driver calls growing and giving back take, whatever the bytes (T4).

Counted by `vmmcache.metrics`, and the same on every machine. In a checkout the script of the same name in the folder
``benchmarks`` counts those of the CUDA and HIP drivers, too, on emulated vendor libraries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from vmmcache import ExtensibleTensor, metrics
from vmmcache.benchmarks.harness import Row
from vmmcache.units import GIB, MIB

__all__ = ["SEGMENTS", "TITLE", "measure"]

TITLE: Final = "Growth: driver calls (T4)"
SEGMENTS: Final = 64


def measure() -> Sequence[Row]:
    """Calls of the host driver in a tensor's life."""

    def made() -> Counter[str]:
        return Counter(metrics.snapshot().devices["host"].calls)

    def row(what: str, work: Callable[[], object], expected: Counter[str]) -> Row:
        before = made()
        work()
        calls = made() - before
        counted = ", ".join(f"{verb} {count}" for verb, count in calls.items())
        target = f"exactly {expected.total()}"
        return Row(
            f"{what}: {counted}", calls.total(), "calls", judged=calls.total(), target=target, held=calls == expected
        )

    growth = Counter(create=1, map=1, grant=1)
    every = Counter(dict.fromkeys(growth, SEGMENTS))
    with ExtensibleTensor(SEGMENTS * 2 * GIB, "host", segments=SEGMENTS) as tensor:
        others = (0,) * (SEGMENTS - 1)
        return (
            row("one segment grows by 2 MiB", lambda: tensor.commit((2 * MIB, *others)), growth),
            row("one segment grows by 1 GiB", lambda: tensor.commit((1 * GIB, *others)), growth),
            row(
                "one segment shrinks by 2 allocations",
                lambda: tensor.commit(0),
                Counter(unmap=2, release=2, synchronise=1),
            ),
            row(f"{SEGMENTS} segments grow by 64 MiB each", lambda: tensor.commit(64 * MIB), every),
            row(
                f"{SEGMENTS} segments go to sleep",
                tensor.release_physical,
                Counter(unmap=SEGMENTS, release=SEGMENTS, synchronise=1),
            ),
            row(f"{SEGMENTS} segments wake", tensor.restore, every),
        )
