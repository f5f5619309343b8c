"""What a plan costs (B1): nine life cycles, a long request fitted to 16 GiB beside up to 1023 others.

The figure it is compared with is a straightforward evaluation in the same run: every request at every probe. Both must
find the same capacity, and that the known one, or the run fails whatever the times.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from importlib import resources
from typing import Any, Final

from vmmcache.benchmarks.harness import Row, best_in_turns, seconds
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, ConstraintPolicy, Plan, Request, plan

__all__ = ["TITLE", "large_layout", "measure", "nine_layout"]

TITLE: Final = "Planner (B1)"

NINE: Final[dict[str, Any]] = json.loads(
    resources.files("vmmcache.benchmarks").joinpath("nine_lifecycles.json").read_text(encoding="utf-8")
)
T: int = NINE["tokens_per_block"]
QUOTA: int = NINE["gpu_quota_bytes"]
PLENTY: int = NINE["gpu_quota_bytes_already_fitting"]
GRANULE: int = NINE["gpu_page_granularity_bytes"]
LONG = 1 << 20
SIZES: Sequence[int] = NINE["workload"]["batch_sizes"]
REPEATS = 5
FIT_MS, CONSTRUCTION_MS, SEPARATE_MS, LARGE_MS, FLAT = 0.3, 1.0, 3.0, 5.0, 1.3


def nine_layout() -> CacheLayout:
    """Layers with nine life cycles: full attention, windows and sinks of several sizes."""
    layers = []
    for entry in NINE["variants"]["attn9"]:
        buffers = [Buffer(role, nbytes) for role, nbytes in entry["buffers_bytes_per_block"].items()]
        layers += [Attention(buffers, entry["window"], entry["sink_tokens"]) for _ in range(entry["num_layers"])]
    return CacheLayout(T, layers)


def constraints(others: Iterable[Request]) -> list[Batch]:
    """A prompt, and a long request to be fitted beside others."""
    marked = Request(LONG, LONG - 4, ConstraintPolicy.FIT_TO_QUOTA)
    return [Batch([Request(8192, 0)]), Batch([marked, *others])]


def equal(batch_size: int) -> list[Batch]:
    """The long request and copies of a short one."""
    return constraints([Request(4, 0, count=batch_size - 1)] if batch_size > 1 else [])


def fitted(layout: CacheLayout, batches: list[Batch], quota: int = QUOTA) -> Plan:
    """What is measured."""
    return plan(layout, quota, GRANULE, constraints=batches)


def large_layout() -> CacheLayout:
    """128 layers in 64 life cycles and seven pool groups; one of the life cycles sees every token."""
    layers = []
    for life in [index % 64 for index in range(128)]:
        buffers = [Buffer("key", 131072 * (1 + life % 7)), Buffer("value", 131072)]
        layers.append(Attention(buffers, 64 * life or None))
    return CacheLayout(T, layers)


def straightforward(layout: CacheLayout, batch_size: int, quota: int = QUOTA) -> int:
    """The fitted capacity, by evaluating every request for every life cycle at every probe."""
    share = Fraction(97, 100)
    decode = [(4, 0)] * (batch_size - 1)

    def blocks(requests: Sequence[tuple[int, int]]) -> list[int]:
        slots = [0] * len(layout.groups)
        for cycle in layout.life_cycles:
            for capacity, history in requests:
                stale = 0
                if cycle.window is not None:
                    first = min(-(-history // T), cycle.sink_blocks)
                    stale = max(first, (history + 1 - cycle.window) // T) - first
                slots[cycle.group] += -(-capacity // T) - stale
        return slots

    def fits(capacity: int) -> bool:
        floors = [0] * len(layout.groups)
        widest = max(c.sink_blocks + (c.window + T - 2) // T + 1 for c in layout.life_cycles if c.window)
        for cycle in layout.life_cycles:
            window = cycle.window
            floors[cycle.group] += widest if window is None else cycle.sink_blocks + (window + T - 2) // T + 1
        for batch in ([(8192, 0)], [(capacity, capacity - 4), *decode]):
            for group, need in enumerate(blocks(batch)):
                floors[group] = max(floors[group], -(-need * share.denominator // share.numerator))
        granules = 0
        for pools, floor in zip(layout.groups, floors, strict=True):
            granules += sum(-(-floor * nbytes // GRANULE) for nbytes in pools.slot_bytes)
        return granules <= quota // GRANULE

    if fits(LONG):
        return LONG
    low, high = 1, LONG // T
    while low < high - 1:
        middle = (low + high) // 2
        if fits(middle * T):
            low = middle
        else:
            high = middle
    return low * T


def differences() -> list[str]:
    """Results that are not what they have to be."""
    layout = nine_layout()
    wrong = []
    for size in SIZES:
        expected = NINE["expected"]["by_batch_size"][str(size)]
        planned = fitted(layout, equal(size))
        found = {
            "fitted_capacity": planned.resolved_constraints[1].requests[0].capacity,
            "min_slots": [group.min_slots for group in planned.groups],
            "slot_counts": [group.slots for group in planned.groups],
        }
        if found != expected:
            wrong.append(f"batch {size}: {found} is not {expected}")
        if straightforward(layout, size) != expected["fitted_capacity"]:
            wrong.append(f"batch {size}: the straightforward evaluation differs")
        separate = fitted(layout, constraints([Request(4, 0) for _ in range(size - 1)]))
        if separate.groups != planned.groups:
            wrong.append(f"batch {size}: separate requests are planned otherwise than copies")
    if straightforward(layout, 256, PLENTY) != LONG or fitted(layout, equal(256), PLENTY).reductions:
        wrong.append("what fits already is reduced")
    return wrong


def several(work: Callable[[], object]) -> Callable[[], float]:
    """Milliseconds of the best of a few calls in a row, after one that is not counted: caches are warm, as in use."""

    def turn() -> float:
        calls = [0.0] * REPEATS

        def in_a_row() -> None:
            work()
            for number in range(REPEATS):
                start = time.perf_counter()
                work()
                calls[number] = time.perf_counter() - start

        seconds(in_a_row)  # for its care about the garbage collector
        return min(calls) * 1000

    return turn


def measure() -> Sequence[Row]:
    """Fitting and construction, for batches of every size.

    Raises
    ------
    SystemExit
        A result is not the known one.
    """
    warnings.simplefilter("ignore")  # every fit says that it reduced a request; here it is meant to
    if wrong := differences():
        raise SystemExit("\n".join(wrong))
    layout, large = nine_layout(), large_layout()
    equals = {size: equal(size) for size in SIZES}
    separate = constraints([Request(4, 0) for _ in range(1023)])
    different = constraints([Request(32 + index % 32, index // 32) for index in range(1023)])
    cases: dict[str, Callable[[], float]] = {}
    for size in SIZES:
        cases[f"fit {size}"] = several(lambda size=size: fitted(layout, equals[size]))  # type: ignore[misc]  # bound now
        cases[f"construction {size}"] = several(lambda size=size: fitted(nine_layout(), equal(size)))  # type: ignore[misc]
        cases[f"plain {size}"] = lambda size=size: seconds(lambda: straightforward(layout, size)) * 1000  # type: ignore[misc]
    cases["plenty"] = several(lambda: fitted(layout, equals[256], PLENTY))
    cases["plain plenty"] = lambda: seconds(lambda: straightforward(layout, 256, PLENTY)) * 1000
    cases["separate"] = several(lambda: fitted(layout, separate))
    cases["different"] = several(lambda: fitted(layout, different))
    if not fitted(large, equals[32], 2 * QUOTA).reductions:
        raise SystemExit("the large model was meant to be fitted, and fits as it is")
    cases["large"] = several(lambda: fitted(large_layout(), equals[32], 2 * QUOTA))
    best = best_in_turns(cases)
    rows = [_row(f"fit and split, batch {n}", best[f"fit {n}"], best[f"plain {n}"], FIT_MS) for n in SIZES]
    rows += [_row(f"construction, batch {n}", best[f"construction {n}"], None, CONSTRUCTION_MS) for n in SIZES]
    rows.append(_row("already fitting, batch 256", best["plenty"], best["plain plenty"], FIT_MS))
    rows.append(_row("1024 separate equal requests", best["separate"], best["plain 1024"], SEPARATE_MS))
    rows.append(_row("1024 different requests", best["different"], None, SEPARATE_MS))
    rows.append(_row("128 layers, 64 life cycles, construction", best["large"], None, LARGE_MS))
    for kind in ("fit", "construction"):
        figures = [best[f"{kind} {size}"] for size in SIZES]
        rows.append(
            Row(
                f"{kind}: largest batch against smallest",
                figures[-1],
                "ms",
                f"batch {SIZES[0]}",
                figures[0],
                figures[-1] / figures[0],
                f"<= {FLAT:g} times",
                figures[-1] <= FLAT * figures[0],
            )
        )
    return rows


def _row(name: str, figure: float, plain: float | None, target: float) -> Row:
    against = None if plain is None else "every request at every probe"
    return Row(name, figure, "ms", against, plain, figure, f"<= {target:g} ms", figure <= target)
