"""What deciding a cache's size costs: `finalize` on the host, beside the commits and the garbage collection in it.

It measures, as it does by default. Before that it has Python look for garbage, which may hold memory; how long that
takes depends on what a process has imported, and so it is timed by itself in the same round.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Final

from vmmcache import KVCacheManager, open_driver
from vmmcache.benchmarks.harness import QUICK_ROUNDS, ROUNDS, Row, mode, seconds
from vmmcache.cache.manager import CHUNK
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.planning import Attention, Buffer, CacheLayout
from vmmcache.planning.layout import Arrangement
from vmmcache.units import KIB

__all__ = ["NEEDS", "TITLE", "measure"]

TITLE: Final = "Manager: deciding the size of a cache"
NEEDS: Final = ("torch",)

T: Final = 16
LAYERS: Final = (32, 64, 128)
ARRANGEMENTS: Final[Sequence[Arrangement]] = ("layer-major", "block-major")
MS_ABOVE: Final = 50.0


def measure() -> Sequence[Row]:
    """Caches of 32 to 128 layers, in both arrangements."""
    rounds = QUICK_ROUNDS if mode.quick else ROUNDS
    steps = [(arrangement, layers) for arrangement in ARRANGEMENTS for layers in LAYERS]
    rows = []
    for number, (arrangement, layers) in enumerate(steps):
        if mode.progress is not None:
            mode.progress(number, len(steps))
        best = [min(column) for column in zip(*(deciding(layers, arrangement) for _ in range(rounds)), strict=True)]
        above = best[0] - best[1]
        judged = (f"<= {MS_ABOVE:g} ms above", above <= MS_ABOVE) if layers == LAYERS[-1] else (None, None)
        name = f"finalize, {arrangement}, {layers} layers"
        rows.append(Row(name, best[0], "ms", "its commits and collection alone", best[1], above, *judged))
    return rows


def deciding(layers: int, arrangement: Arrangement) -> tuple[float, float]:
    """Milliseconds of `finalize` on the host after a warm-up, and of what it cannot do without, alone."""
    block = [Buffer("key", 32 * KIB), Buffer("value", 32 * KIB)]
    layout = CacheLayout(T, [Attention(block, count=layers)])
    with KVCacheManager(layout, open_driver("host"), arrangement=arrangement) as manager:
        manager.ensure(16)
        deciding = seconds(manager.finalize) * 1e3
        if manager.report is None or manager.report.sized_by != "measurement":
            raise SystemExit(f"the size was not measured: {manager.report}")
        collecting = seconds(gc.collect) * 1e3
        counts, pools, capacity = manager.committed, manager.pools, manager.capacity
    backing = VmmBacking(pools, capacity, "host", chunk=CHUNK)
    backing.commit(1)
    backing.commit(16)

    def commits() -> None:
        backing.commit(0)
        backing.commit(counts)

    bare = seconds(commits) * 1e3
    backing.close()
    return deciding, bare + collecting
