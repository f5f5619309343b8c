"""What people reported of engines that size their cache, each as a scenario (S2, S4, S14).

The numbers in the names are issues of vLLM, the number in the docstring is the scenario's. Figures are of the size that
the reports give; no test claims that a device was seen to do this.
"""

from __future__ import annotations

from functools import partial

import pytest

from vmmcache import MemoryBudget, PlanError, QuotaError, host_memory
from vmmcache.cache.fitting import PlanInputs, fit
from vmmcache.cache.sizing import Budget, committable, default_estimate, estimated_budget, measured_budget
from vmmcache.cache.snapshots import MemoryReader, Snapshot
from vmmcache.handles import MemoryInfo
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Request
from vmmcache.units import GIB, MIB

LLAMA = CacheLayout(16, [Attention([Buffer("key", 32768), Buffer("value", 32768)], count=32)])


def at(free: int, total: int = 24 * GIB, committed: int = 0) -> Snapshot:
    return Snapshot(free, total, "driver", committed)


def test_57475_57595_graphs_took_more_than_their_estimate() -> None:
    """1: an estimate subtracts what it was told; a measurement sees what the captured graphs took."""
    start, told, took = at(23 * GIB), 300 * MIB, 900 * MIB
    before_capture, after_capture = at(14 * GIB), at(14 * GIB - took)
    settings = MemoryBudget(utilization=0.98, graph_estimate=told)
    estimated = estimated_budget(settings, start, before_capture, GIB)
    measured = measured_budget(settings, start, after_capture, GIB)
    at_work = estimated.nbytes + estimated.non_kv + took + GIB
    assert at_work > estimated.requested  # what the reports saw: more than the share, and soon more than there is
    assert measured.nbytes + measured.non_kv + GIB <= measured.requested


def test_50780_an_estimate_charges_too_much() -> None:
    """2: the report has both, so that one can see by how much."""
    start, now = at(79 * GIB, 80 * GIB), at(20 * GIB, 80 * GIB, committed=20 * GIB)
    measured = measured_budget(MemoryBudget(), start, now, 2 * GIB)
    estimate = default_estimate(MemoryBudget(), start, now, 2 * GIB)
    assert measured.nbytes - estimate.nbytes > 2 * GIB
    assert estimate.nbytes == 80 * GIB * 92 // 100 - 39 * GIB - 2 * GIB


def test_30515_19480_graphs_are_captured_on_the_committed_prefix_first() -> None:
    """3: what is committed for capture is no loss, and no second capture is needed to know its footprint."""
    start = at(23 * GIB)
    nothing, prefix = at(20 * GIB), at(16 * GIB, committed=4 * GIB)
    assert measured_budget(MemoryBudget(), start, nothing, GIB) == measured_budget(MemoryBudget(), start, prefix, GIB)


def test_55827_two_engines_start_together_and_each_charges_the_other() -> None:
    """4: less than nothing was available. Free memory is the device's: what a neighbour takes meanwhile is charged too.

    So nothing is left, which is clamped, and refused with the numbers by which one sees it. With a share for each, and
    one after the other, both find theirs.
    """
    half = MemoryBudget(utilization=0.45)
    together = measured_budget(half, at(23 * GIB), at(4 * GIB), GIB)  # of 19 GiB taken since, 15 are the neighbour's
    assert together.nbytes == 0
    with pytest.raises(PlanError, match=r"utilization 0\.45, 4 GiB free for it, 19 GiB used beside it"):
        fit(PlanInputs(LLAMA, 2 * MIB), together.nbytes, budget=together)
    first = measured_budget(half, at(23 * GIB), at(19 * GIB), GIB).nbytes
    left = 19 * GIB - first
    second = measured_budget(half, at(left), at(left - 4 * GIB), GIB).nbytes
    assert first == second == 24 * GIB * 45 // 100 - 5 * GIB
    assert first + second + 8 * GIB < 23 * GIB


def test_56830_a_neighbour_frees_memory_meanwhile() -> None:
    """5: no assertion, and no more than the share that was asked for."""
    budget = measured_budget(MemoryBudget(utilization=0.5), at(10 * GIB), at(20 * GIB), GIB)
    assert budget.non_kv == 0
    assert budget.nbytes == 12 * GIB - GIB
    assert estimated_budget(MemoryBudget(utilization=0.5), at(10 * GIB), at(20 * GIB), GIB).nbytes == 12 * GIB - GIB


@pytest.mark.parametrize(
    ("start", "now"),
    [
        (at(1 << 60), at(1 << 60)),
        (at(23 * GIB), at(23 * GIB, committed=1 << 60)),
        (at(-1 << 60), at(-1 << 60)),
        (at(0, total=0), at(0, total=0)),
    ],
)
def test_55169_numbers_that_cannot_be(start: Snapshot, now: Snapshot) -> None:
    """6: whatever a source says, a budget is from nothing to all memory."""
    settings = MemoryBudget()
    for nbytes in (
        measured_budget(settings, start, now, GIB).nbytes,
        estimated_budget(settings, start, now, GIB).nbytes,
        committable(settings, start, now, GIB),
    ):
        assert 0 <= nbytes <= now.total


def test_35920_48140_46307_56824_unified_memory() -> None:
    """7: where what a driver calls free leaves out what the system would give back, another source is put in."""
    says = {"driver": 6 * GIB, "MemAvailable": 100 * GIB}
    snapshots = [
        MemoryReader(memory_info=partial(MemoryInfo, free, 120 * GIB, source)).snapshot("start")
        for source, free in says.items()
    ]
    assert [snapshot.source for snapshot in snapshots] == ["driver", "MemAvailable"]
    budgets = [measured_budget(MemoryBudget(utilization=0.9), one, one, GIB) for one in snapshots]
    assert budgets[0].nbytes < 6 * GIB
    assert budgets[1].nbytes == 100 * GIB - 512 * MIB - GIB


def test_37096_37111_an_allocator_that_reports_less_than_is_in_use() -> None:
    """17: bytes of the cache come from the pool itself, never from the statistics of torch's allocator."""
    behind = Snapshot(10 * GIB, 24 * GIB, "driver", committed=4 * GIB, reserved_peak=0, live=3 * GIB)
    assert behind.transient_peak == 0
    budget = measured_budget(MemoryBudget(), at(23 * GIB), behind, behind.transient_peak)
    assert budget.nbytes == 14 * GIB - 256 * MIB


def test_42467_42401_39874_a_slice_of_a_shared_gpu() -> None:
    """24: the slice's own total bounds the share, whatever the whole board has."""
    board, part = 80 * GIB, 10 * GIB
    start, now = at(part, total=part), at(7 * GIB, total=part)
    assert measured_budget(MemoryBudget(), start, now, 512 * MIB).requested == part < board
    assert measured_budget(MemoryBudget(utilization=0.5), start, now, 512 * MIB).nbytes == (5 - 3) * GIB - 512 * MIB


def test_5907_5067_5424_prompt_logprobs_after_the_cache_was_sized() -> None:
    """29: the peak of a chunk that warm-up ran is paid for, and half as much again is kept free beside it."""
    start, now = at(23 * GIB), at(15 * GIB)
    rows, vocabulary = 1024, 151_936
    chunk = rows * vocabulary * 4 * 2  # logits and their logarithms in float32
    without = measured_budget(MemoryBudget(), start, now, 400 * MIB)
    with_it = measured_budget(MemoryBudget(), start, now, max(400 * MIB, chunk))
    kept_free = with_it.headroom - with_it.nbytes
    assert kept_free == chunk + chunk * 1 // 2
    assert without.headroom - without.nbytes < chunk


def test_8180_18335_libraries_that_do_not_allocate_through_torch() -> None:
    """30: their workspaces come out of the margin, which is there also where no peak was seen at all."""
    budget = measured_budget(MemoryBudget(), at(23 * GIB), at(15 * GIB), 0)
    assert budget.headroom - budget.nbytes == 256 * MIB


@pytest.mark.parametrize(("utilization", "raise_it"), [(1.0, False), (0.5, True)])
def test_2248_17431_27508_22702_no_memory_for_the_cache(utilization: float, raise_it: bool) -> None:
    """31: the refusal has the numbers and what helps; never "raise utilization" where it is 1 (S3)."""
    settings = MemoryBudget(utilization=utilization)
    budget = measured_budget(settings, at(23 * GIB), at(GIB if utilization == 1 else 12 * GIB), GIB)
    assert budget.nbytes == 0
    with pytest.raises(PlanError) as refusal:
        fit(PlanInputs(LLAMA, 2 * MIB), budget.nbytes, budget=budget)
    text = str(refusal.value)
    assert "the cache gets 0 bytes" in text
    assert "there is no slot at all" in text
    assert ("aise utilization" in text) == raise_it
    assert "shorter or fewer requests" in text


def test_a_longest_request_that_no_longer_fits_is_refused_and_named() -> None:
    """S3: never a silent clamp."""
    budget: Budget = measured_budget(MemoryBudget(), at(23 * GIB), at(6 * GIB), GIB)
    inputs = PlanInputs(LLAMA, 2 * MIB, constraints=(Batch([Request(64)]), Batch([Request(9), Request(131072)])))
    with pytest.raises(QuotaError) as refusal:
        fit(inputs, budget.nbytes, budget=budget)
    error = refusal.value
    assert (error.cause, error.constraint, error.group) == ("fixed", 1, 0)
    assert error.needed > error.usable
    assert error.configured == budget.nbytes
    assert "constraints[1].requests[1], 131072 tokens" in str(error)
    assert "aise utilization" not in str(error)
    longest = inputs.longest(budget.nbytes)
    assert f"the longest single request that fits has {longest} tokens" in str(error)
    assert 0 < longest < 131072


def test_the_host_without_a_driver_reads_what_the_host_driver_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """D15, S14: one reading for both paths."""
    monkeypatch.setenv(host_memory.VARIABLE, "3GiB")
    snapshot = MemoryReader().snapshot("start")
    assert (snapshot.free, snapshot.total, snapshot.source) == (3 * GIB, 3 * GIB, "configured")
