"""What handing out slots costs: per request and pool group, of 1,000 to 1,000,000 slots, for 1 to 100,000 blocks.

The figure it is compared with is a loop over blocks, with a list of free slots and a list for each block table, in the
same run. Then what `KVCacheManager.finalize` costs beyond the commits themselves, and how that grows with layers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.harness import ROUNDS, Row, best_in_turns, run, seconds
from vmmcache import KVCacheManager, MemoryBudget, open_driver
from vmmcache.benchmarks.planner import nine_layout
from vmmcache.cache.manager import CHUNK
from vmmcache.cache.requests import CacheRequest
from vmmcache.cache.slots import Slots
from vmmcache.cache.vmm_backing import VmmBacking
from vmmcache.planning import Attention, Buffer, CacheLayout
from vmmcache.planning.layout import Arrangement
from vmmcache.units import KIB, MIB

US_EACH, US_PER_BLOCK = 5.0, 0.01
MS_ABOVE = 50.0
LAYERS = (32, 64, 128)
ARRANGEMENTS: tuple[Arrangement, ...] = ("layer-major", "block-major")
T = 16
POOLS = (1_000, 10_000, 100_000, 1_000_000)
BLOCKS = (1, 10, 100, 1_000, 10_000, 100_000)
MOST = 1_000_000
REQUESTS = 200
"""At most so many at a time."""
PREPARED = 300
"""Blocks of requests that decode: more than any window here."""


def one_group() -> CacheLayout:
    return CacheLayout(T, [Attention([Buffer("key", 4096)], count=32)])


class Churn:
    """Requests of so many blocks that come, grow by as many, wait, go on, and go."""

    def __init__(self, layout: CacheLayout, slots: int, blocks: int) -> None:
        self.groups = len(layout.groups)
        self.tokens = blocks * layout.tokens_per_block
        self.number = max(1, min(REQUESTS, slots // (2 * len(layout.life_cycles) * blocks)))
        self.slots = Slots(layout, [slots] * self.groups, max_util_for_resume=1)
        self.requests: list[CacheRequest] = []

    def turn(self) -> dict[str, float]:
        """Microseconds per request and pool group of each operation."""
        slots, requests, tokens = self.slots, self.requests, self.tokens

        def timed(work: Callable[[], object]) -> float:
            return seconds(work) * 1e6 / self.number / self.groups

        def allocate() -> None:
            for _ in range(self.number):
                requests.append(slots.allocate(tokens))

        def grow() -> None:
            for request in requests:
                slots.grow(request, 2 * tokens)

        def suspend() -> None:
            for request in requests:
                slots.suspend(request)

        def resume() -> None:
            for request in requests:
                if not slots.resume(request):
                    raise SystemExit("a request was not resumed")

        def free() -> None:
            for request in requests:
                slots.free(request)
            requests.clear()

        return {work.__name__: timed(work) for work in (allocate, grow, suspend, resume, free)}


def churned(layout: CacheLayout, slots: int, blocks: int, rounds: int = ROUNDS) -> dict[str, float]:
    churn = Churn(layout, slots, blocks)
    turns = [churn.turn() for _ in range(rounds)]
    return {name: min(turn[name] for turn in turns) for name in turns[0]}


def decoded(layout: CacheLayout, slots: int) -> float:
    """Microseconds per request and group of one token more, on average over whole blocks."""
    pools = Slots(layout, [slots] * len(layout.groups))
    t = layout.tokens_per_block
    start = t * min(PREPARED, slots // (4 * len(layout.life_cycles)))
    number = max(1, min(REQUESTS, slots // (2 * len(layout.life_cycles) * (start // t + 1))))
    requests = [pools.allocate(start, start) for _ in range(number)]

    def steps() -> None:
        for _ in range(t):
            for request in requests:
                pools.grow(request, request.capacity + 1, request.capacity)

    best = seconds(steps)
    for request in requests:
        pools.free(request)
    return best * 1e6 / number / t / len(layout.groups)


def straightforward(slots: int, blocks: int) -> float:
    """Microseconds per request: taking a request's slots one by one from a list."""
    free = list(range(slots))
    number = max(1, min(REQUESTS, slots // (2 * blocks)))
    tables: list[list[int]] = []

    def allocate() -> None:
        for _ in range(number):
            table = []
            for _ in range(blocks):
                table.append(free.pop())  # noqa: PERF401 - one by one is what is measured
            tables.append(table)

    return seconds(allocate) * 1e6 / number


def deciding(layers: int, arrangement: Arrangement) -> tuple[float, float]:
    """Milliseconds of `finalize` on the host after a warm-up, and of the two commits in it alone."""
    block = [Buffer("key", 32 * KIB), Buffer("value", 32 * KIB)]
    layout = CacheLayout(T, [Attention(block, count=layers)])
    budget = MemoryBudget(nbytes=layers * 4 * MIB)
    with KVCacheManager(layout, open_driver("host"), budget, arrangement=arrangement) as manager:
        manager.ensure(16)
        deciding = seconds(manager.finalize) * 1e3
        counts, pools, capacity = manager.committed, manager._core.path.pools, manager.capacity
    backing = VmmBacking(pools, capacity, "host", chunk=CHUNK)
    backing.commit(1)
    backing.commit(16)

    def commits() -> None:
        backing.commit(0)
        backing.commit(counts)

    bare = seconds(commits) * 1e3
    backing.close()
    return deciding, bare


def finalized() -> list[Row]:
    rows = []
    for arrangement in ARRANGEMENTS:
        for layers in LAYERS:
            best = [min(column) for column in zip(*(deciding(layers, arrangement) for _ in range(ROUNDS)), strict=True)]
            above = best[0] - best[1]
            judged = (f"<= {MS_ABOVE:g} ms above", above <= MS_ABOVE) if layers == LAYERS[-1] else (None, None)
            name = f"finalize, {arrangement}, {layers} layers"
            rows.append(Row(name, best[0], "ms", "its commits alone", best[1], above, *judged))
    return rows


def measure() -> Sequence[Row]:
    rows = []
    for name, layout in (("1 group", one_group()), ("9 life cycles in 6 groups", nine_layout())):
        for pool in POOLS:
            figures = churned(layout, pool, 1)
            figures["a token more"] = min(decoded(layout, pool) for _ in range(ROUNDS))
            rows += [_row(f"{name}, {pool:,} slots, 1 block: {what}", us, 1) for what, us in figures.items()]
    for blocks in BLOCKS[1:]:
        figures = churned(one_group(), MOST, blocks)
        plain = best_in_turns({"plain": partial(straightforward, MOST, blocks)}, rounds=3)["plain"]
        for what, us in figures.items():
            against = plain if what == "allocate" else None
            rows.append(_row(f"1 group, {MOST:,} slots, {blocks:,} blocks: {what}", us, blocks, against))
    rows += finalized()
    start = time.perf_counter()
    Slots(one_group(), [MOST])
    rows.append(Row(f"making the bookkeeping of {MOST:,} slots", (time.perf_counter() - start) * 1e6, "us"))
    return rows


def _row(name: str, us: float, blocks: int, plain: float | None = None) -> Row:
    most = US_EACH + US_PER_BLOCK * blocks
    target = f"<= {US_EACH:g} us + {US_PER_BLOCK * 1000:g} ns a block"
    against = None if plain is None else "a list and a loop"
    return Row(name, us, "us", against, plain, us, target, us <= most)


if __name__ == "__main__":
    sys.exit(run("Slots, per request and pool group", measure))
