"""What the figures cost when nobody looks (U6): the calls of a commit with and without being counted, in turns.

The driver here does nothing, so that what is left is the counting: three calls of a growth where new memory is zero,
and five where it has to be zeroed and waited for; each with the end of its operation. And what a snapshot costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from benchmarks.harness import Row, best_in_turns, run, seconds
from vmmcache import ExtensibleTensor, VmmDriver, metrics
from vmmcache.memory.region._verbs import Verbs
from vmmcache.metrics import Meter
from vmmcache.units import MIB

TITLE = "Metrics: what counting costs (U6)"
US_A_COMMIT = 1.0
TIMES = 200
"""Commits in one measurement: short, so that one of many is not disturbed."""
ROUNDS = 400
TENSORS = 100


class Nothing:
    """The verbs of a growth, without a device."""

    def __init__(self) -> None:
        self.allocation: Any = type("Allocation", (), {"nbytes": 2 * MIB})()

    def create(self, nbytes: int) -> Any:
        return self.allocation

    def map(self, reservation: Any, offset: int, allocation: Any) -> Any:
        return allocation

    def grant(self, run: Sequence[Any], *, writable: bool = True) -> None:
        """Does nothing, like those below."""

    def zero(self, address: int, nbytes: int) -> None: ...

    def synchronise(self) -> None: ...


def measure() -> Sequence[Row]:
    driver = Nothing()
    meter = Meter("nothing:0", 0)
    counted = Verbs(cast(VmmDriver, driver), meter)

    def growing(verbs: Any, *, zeroing: bool, finish: bool) -> Callable[[], None]:
        def work() -> None:
            for _ in range(TIMES):
                verbs.grant([verbs.map(None, 0, verbs.create(2 * MIB))], writable=True)
                if zeroing:
                    verbs.zero(0, 2 * MIB)
                    verbs.synchronise()
                if finish:
                    begun = time.monotonic_ns()
                    meter.finish("commit", time.monotonic_ns() - begun, 2 * MIB)

        return work

    cases = {
        "3 calls": (growing(driver, zeroing=False, finish=False), growing(counted, zeroing=False, finish=True)),
        "5 calls, one of them waits": (
            growing(driver, zeroing=True, finish=False),
            growing(counted, zeroing=True, finish=True),
        ),
    }

    def timed(work: Callable[[], object]) -> Callable[[], float]:
        return lambda: seconds_of(work) * 1e6 / TIMES

    best = best_in_turns(
        {f"{name} {way}": timed(work) for name, ways in cases.items() for way, work in zip("-+", ways, strict=True)},
        ROUNDS,
    )
    rows = [
        Row(
            f"a growth of {name}, counted",
            best[f"{name} +"],
            "us",
            against="not counted",
            against_figure=best[f"{name} -"],
            judged=best[f"{name} +"] - best[f"{name} -"],
            target=f"{US_A_COMMIT} us more, or less",
            held=best[f"{name} +"] - best[f"{name} -"] <= US_A_COMMIT,
        )
        for name in cases
    ]
    tensors = [ExtensibleTensor(64 * MIB, "host") for _ in range(TENSORS)]
    rows.append(Row(f"a snapshot of {TENSORS} tensors", seconds(metrics.snapshot) * 1e6, "us"))
    for tensor in tensors:
        tensor.close()
    return rows


def seconds_of(work: Callable[[], object]) -> float:
    """One call; without a collection each time, because nothing here makes garbage, and there are many rounds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(run(TITLE, measure))
