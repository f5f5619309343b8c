"""What handing out slots costs: per request and pool group, of 1,000 to 1,000,000 slots, for 1 to 100,000 blocks.

The figure it is compared with is a loop over blocks, with a list of free slots and a list for each block table, in the
same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from vmmcache.benchmarks.harness import QUICK_ROUNDS, ROUNDS, Row, mode, seconds
from vmmcache.benchmarks.planner import nine_layout
from vmmcache.cache.requests import CacheRequest
from vmmcache.cache.slots import Slots
from vmmcache.planning import Attention, Buffer, CacheLayout

__all__ = ["TITLE", "measure"]

TITLE: Final = "Slots, per request and pool group"

US_EACH: Final = 5.0
US_PER_BLOCK: Final = 0.01
T: Final = 16
POOLS: Final = (1_000, 10_000, 100_000, 1_000_000)
BLOCKS: Final = (1, 10, 100, 1_000, 10_000, 100_000)
MOST: Final = 1_000_000
REQUESTS: Final = 200
"""At most so many at a time."""
PREPARED: Final = 300
"""Blocks of requests that decode: more than any window here."""


def measure() -> Sequence[Row]:
    """Requests that come, grow, wait, go on, and go."""
    rounds = QUICK_ROUNDS if mode.quick else ROUNDS
    layouts = (("1 group", one_group()), ("9 life cycles in 6 groups", nine_layout()))
    steps = len(layouts) * len(POOLS) + len(BLOCKS) - 1
    rows: list[Row] = []

    def told(done: int) -> None:
        if mode.progress is not None:
            mode.progress(done, steps)

    for number, (name, layout) in enumerate(layouts):
        for place, pool in enumerate(POOLS):
            told(number * len(POOLS) + place)
            figures = churned(layout, pool, 1, rounds)
            figures["a token more"] = min(decoded(layout, pool) for _ in range(rounds))
            rows += [_row(f"{name}, {pool:,} slots, 1 block: {what}", us, 1) for what, us in figures.items()]
    for number, blocks in enumerate(BLOCKS[1:], len(layouts) * len(POOLS)):
        told(number)
        figures = churned(one_group(), MOST, blocks, rounds, beside=straightforward)
        plain = figures.pop("plain")
        for what, us in figures.items():
            against = plain if what == "allocate" else None
            rows.append(_row(f"1 group, {MOST:,} slots, {blocks:,} blocks: {what}", us, blocks, against))
    start = time.perf_counter()
    Slots(one_group(), [MOST])
    rows.append(Row(f"making the bookkeeping of {MOST:,} slots", (time.perf_counter() - start) * 1e6, "us"))
    return rows


def one_group() -> CacheLayout:
    """Layers that all see every token."""
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


def churned(
    layout: CacheLayout,
    slots: int,
    blocks: int,
    rounds: int = ROUNDS,
    beside: Callable[[int, int], float] | None = None,
) -> dict[str, float]:
    """The best of each operation over `rounds`; and of `beside`, which takes turns with them, as "plain"."""
    churn = Churn(layout, slots, blocks)
    turns = []
    for _ in range(rounds):
        turns.append(churn.turn())
        if beside is not None:
            turns[-1]["plain"] = beside(slots, blocks)
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


def _row(name: str, us: float, blocks: int, plain: float | None = None) -> Row:
    most = US_EACH + US_PER_BLOCK * blocks
    target = f"<= {US_EACH:g} us + {US_PER_BLOCK * 1000:g} ns a block"
    against = None if plain is None else "a list and a loop"
    return Row(name, us, "us", against, plain, us, target, us <= most)
