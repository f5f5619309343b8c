"""The worked example of docs/sizing.md: one device, one model, and what each path makes of it.

Prints what the page shows. The snapshots are written down here; a manager takes them from the device.
"""

from __future__ import annotations

from vmmcache import MemoryBudget, SizingReport
from vmmcache.cache.fitting import PlanInputs, alignment_loss, fit
from vmmcache.cache.report import group_sizes, warm_up_fields
from vmmcache.cache.sizing import Budget, committable, default_estimate, estimated_budget, measured_budget
from vmmcache.cache.snapshots import Snapshot
from vmmcache.cache.warmup import WarmupLog
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Request
from vmmcache.units import GIB, MIB, format_bytes

# Llama 3.1 8B in bfloat16: 32 layers, 8 heads of 128 numbers for keys and as many for values, 16 tokens a block.
HEADS, NUMBERS, BYTES = 8, 128, 2
LAYER = [Buffer(role, 16 * HEADS * NUMBERS * BYTES) for role in ("key", "value")]
LAYOUT = CacheLayout(16, [Attention(LAYER, count=32)])

# A device of 80 GiB. Weights take 15 GiB, what was captured and what libraries keep 1.75 GiB; a step of 8192 tokens
# with a prompt-logprobs chunk needs 3 GiB in passing. Warm-up ran on 4 GiB of cache.
START = Snapshot(free=78 * GIB, total=80 * GIB, source="driver", stage="start")
WARM = Snapshot(
    free=78 * GIB - 15 * GIB - 1792 * MIB - 4 * GIB,
    total=80 * GIB,
    source="driver",
    committed=4 * GIB,
    reserved_peak=18 * GIB + 512 * MIB,
    live=15 * GIB + 512 * MIB,
    stage="warm",
)
SETTINGS = MemoryBudget()
DECODE = Batch([Request(8192, 8191, count=32)])


def report(budget: Budget, *, aligned: bool) -> SizingReport:
    """What a manager would report of a budget."""
    measured = budget.mode == "measured"
    granule = 2 * MIB if measured else 1
    plan = fit(PlanInputs(LAYOUT, granule, constraints=(DECODE,), null_block=True), budget.nbytes, aligned, budget)
    log = WarmupLog()
    log.ran("mixed_step", tokens=8192)
    log.ran("prompt_logprobs", rows=1024)
    log.ran("sampler", requests=256)
    log.skipped("encoder", "the model has none")
    return SizingReport(
        mode=budget.mode,
        fallback_reason=None if measured else "libcuda.so.1 was not found",
        sized_by=SETTINGS.sized_by(budget.mode),
        device="cuda:0",
        memory_source=WARM.source,
        settings=SETTINGS,
        snapshots=(START, WARM),
        budget=budget,
        estimate=default_estimate(SETTINGS, START, WARM, WARM.transient_peak) if measured else None,
        peak_source="torch's allocator: most reserved",
        granule=granule,
        groups=group_sizes(plan, [group.slots for group in plan.groups]),
        nbytes=plan.nbytes,
        alignment_loss=alignment_loss(plan).nbytes,
        **warm_up_fields(log),
    )


def main() -> None:
    """Print both reports, and how much warm-up might have committed."""
    peak = WARM.transient_peak
    bound = committable(SETTINGS, START, WARM)
    print(f"warm-up may commit up to {format_bytes(bound)}\n")
    print(report(measured_budget(SETTINGS, START, WARM, peak), aligned=True))
    print()
    print(report(estimated_budget(SETTINGS, START, WARM, peak), aligned=False))


if __name__ == "__main__":
    main()
