"""S2, S4, S14: budgets as formulas, against rationals, and what must hold whatever neighbours do."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import floor

from hypothesis import given
from hypothesis import strategies as st

from vmmcache import MemoryBudget
from vmmcache.cache.sizing import (
    Budget,
    committable,
    default_estimate,
    estimated_budget,
    measured_budget,
    temporary_quota,
)
from vmmcache.cache.snapshots import Snapshot
from vmmcache.units import GIB, MIB

TOTAL = 80 * GIB


def at(free: int, committed: int = 0, total: int = TOTAL) -> Snapshot:
    return Snapshot(free, total, "test", committed)


# As people would compute them -----------------------------------------------------------------------------------------


def test_the_measured_budget_term_by_term() -> None:
    """S2, with the numbers of docs/sizing.md."""
    budget = measured_budget(MemoryBudget(), at(79 * GIB), at(50 * GIB, 10 * GIB), 3 * GIB)
    assert budget.requested == 80 * GIB
    assert budget.non_kv == 19 * GIB
    assert budget.headroom == 60 * GIB
    assert budget.margin == 3 * GIB // 2
    assert budget.nbytes == 60 * GIB - 3 * GIB // 2 - 3 * GIB
    assert (budget.mode, budget.limited_by) == ("measured", "memory")


def test_utilization_caps_the_share_of_all_memory() -> None:
    budget = measured_budget(MemoryBudget(utilization=0.5), at(79 * GIB), at(50 * GIB, 10 * GIB), 3 * GIB)
    assert budget.nbytes == 40 * GIB - 19 * GIB - 3 * GIB
    assert budget.limited_by == "utilization"


def test_the_estimated_budget_term_by_term() -> None:
    """S4: no margin; what the temporary pool really took is added back; the graph estimate is subtracted here."""
    settings = MemoryBudget(graph_estimate=GIB)
    budget = estimated_budget(settings, at(79 * GIB), at(50 * GIB, 10 * GIB), 3 * GIB)
    assert budget.non_kv == 19 * GIB
    assert budget.margin == 0
    assert budget.nbytes == TOTAL * 92 // 100 - 19 * GIB - 3 * GIB - GIB
    assert measured_budget(settings, at(79 * GIB), at(50 * GIB), 3 * GIB).graph_estimate == 0


def test_the_encoder_reserve_stays_out_of_the_temporary_quota_and_of_nothing_else() -> None:
    """S4: profiling shows what an encoder takes, so the final budget has it in the peak."""
    plain, declared = MemoryBudget(), MemoryBudget(encoder_reserve=5 * GIB)
    start, now = at(79 * GIB), at(70 * GIB)
    assert temporary_quota(plain, start, now) - temporary_quota(declared, start, now) == 5 * GIB
    assert estimated_budget(plain, start, now, GIB) == estimated_budget(declared, start, now, GIB)
    assert temporary_quota(MemoryBudget(encoder_reserve=TOTAL), start, now) == 0


def test_the_margin_is_the_larger_of_floor_and_share() -> None:
    """S2: both are settings; a program that prints a margin prints the one that was used."""
    start, now = at(TOTAL), at(40 * GIB)
    assert measured_budget(MemoryBudget(), start, now, 100 * MIB).margin == 256 * MIB
    assert measured_budget(MemoryBudget(), start, now, 1000 * MIB).margin == 500 * MIB
    assert measured_budget(MemoryBudget(margin_fraction=0.75), start, now, 1000 * MIB).margin == 750 * MIB
    assert measured_budget(MemoryBudget(margin_floor=GIB), start, now, 1000 * MIB).margin == GIB
    assert measured_budget(MemoryBudget(margin_floor=0, margin_fraction=0), start, now, GIB).margin == 0


def test_warm_up_may_commit_what_is_within_the_share_less_margin_and_reserve() -> None:
    """S10: the larger of the peak known so far and a tenth of the headroom is kept for what warm-up runs."""
    start, now = at(TOTAL), at(40 * GIB, 10 * GIB)
    assert committable(MemoryBudget(), start, now) == 50 * GIB - 256 * MIB - 5 * GIB
    assert committable(MemoryBudget(), start, now, 8 * GIB) == 50 * GIB - 4 * GIB - 8 * GIB
    assert committable(MemoryBudget(utilization=0.5), start, now) == 10 * GIB - 256 * MIB - GIB
    assert committable(MemoryBudget(warmup_reserve=0.5), start, now) == 25 * GIB - 256 * MIB


def test_the_estimate_beside_a_measurement_has_the_default_utilization_of_its_path() -> None:
    """S4, scenario 2: the report says both."""
    start, now = at(TOTAL), at(60 * GIB, 5 * GIB)
    for settings in (MemoryBudget(), MemoryBudget(utilization=0.5), MemoryBudget(nbytes=7)):
        estimate = default_estimate(settings, start, now, GIB)
        assert (estimate.utilization, estimate.mode) == (Fraction(23, 25), "estimated")
        assert estimate.nbytes == TOTAL * 92 // 100 - 15 * GIB - GIB


def test_committed_bytes_of_other_caches_count_at_the_start_too() -> None:
    """S1: a second manager starts on a device on which a first one has committed, and both are measured together."""
    alone = measured_budget(MemoryBudget(), at(TOTAL), at(30 * GIB, 40 * GIB), GIB)
    second = measured_budget(MemoryBudget(), at(60 * GIB, 20 * GIB), at(30 * GIB, 40 * GIB), GIB)
    assert alone == second


# Whatever the numbers -------------------------------------------------------------------------------------------------

SIZES = st.one_of(st.integers(0, 200 * GIB), st.integers(0, 10_000))
SHARES = st.sampled_from([0.001, 0.3, 0.7, 0.92, 1.0, None]) | st.floats(0.01, 1)
SETTINGS = st.builds(
    MemoryBudget,
    utilization=SHARES,
    margin_fraction=st.sampled_from([0, 0.1, 0.25, 0.5, 0.75, 3]) | st.floats(0, 2),
    margin_floor=SIZES,
    warmup_reserve=st.sampled_from([0, 0.1, 0.33]) | st.floats(0, 0.99),
    graph_estimate=SIZES,
    encoder_reserve=SIZES,
)


@st.composite
def devices(draw: st.DrawFn) -> tuple[Snapshot, Snapshot]:
    """A device before and after: neighbours take and free, and sources do not always agree with themselves."""
    total = draw(SIZES)
    free = st.integers(0, total) | SIZES
    start = Snapshot(draw(free), total, "test", draw(st.sampled_from([0, 0, 5 * MIB])))
    return start, Snapshot(draw(free), total, "test", draw(st.integers(0, total) | SIZES))


def model(settings: MemoryBudget, mode: str, start: Snapshot, now: Snapshot, peak: int) -> int:
    """The formulas of the requirement, in rationals and from the top, rounded where a number of bytes is asked for."""
    default = {"measured": "1", "estimated": "0.92"}[mode]
    share = Fraction(default if settings.utilization is None else str(settings.utilization))
    requested = Fraction(floor(share * now.total))
    before, headroom = (min(Fraction(one.free + one.committed), Fraction(one.total)) for one in (start, now))
    left = requested - max(before - headroom, Fraction(0))
    if mode == "estimated":
        return int(max(Fraction(0), min(left, headroom) - peak - settings.graph_estimate))
    margin = max(Fraction(settings.margin_floor), Fraction(floor(Fraction(str(settings.margin_fraction)) * peak)))
    return int(max(Fraction(0), min(left, headroom - margin) - peak))


@given(SETTINGS, devices(), SIZES)
def test_budgets_equal_a_model_of_rationals(
    settings: MemoryBudget, device: tuple[Snapshot, Snapshot], peak: int
) -> None:
    assert measured_budget(settings, *device, peak).nbytes == model(settings, "measured", *device, peak)
    assert estimated_budget(settings, *device, peak).nbytes == model(settings, "estimated", *device, peak)


def every(settings: MemoryBudget, start: Snapshot, now: Snapshot, peak: int) -> list[int]:
    return [
        measured_budget(settings, start, now, peak).nbytes,
        estimated_budget(settings, start, now, peak).nbytes,
        committable(settings, start, now, peak),
        temporary_quota(settings, start, now),
    ]


@given(SETTINGS, devices(), SIZES)
def test_a_budget_is_never_negative_nor_above_what_is_there_nor_above_the_share(
    settings: MemoryBudget, device: tuple[Snapshot, Snapshot], peak: int
) -> None:
    """S14: clamps, whatever a neighbour or a source of numbers does."""
    start, now = device
    caps = [settings.utilization_on("measured"), settings.utilization_on("estimated")] * 2
    for nbytes, cap in zip(every(settings, start, now, peak), caps, strict=True):
        assert 0 <= nbytes <= min(now.headroom, now.total)
        assert nbytes <= cap * now.total


@given(SETTINGS, devices(), SIZES, SIZES)
def test_budgets_do_not_shrink_when_more_is_free(
    settings: MemoryBudget, device: tuple[Snapshot, Snapshot], peak: int, more: int
) -> None:
    start, now = device
    richer = replace(now, free=now.free + more)
    for less, rich in zip(every(settings, start, now, peak), every(settings, start, richer, peak), strict=True):
        assert less <= rich


@given(SETTINGS, devices(), SIZES, SIZES)
def test_budgets_do_not_grow_with_the_peak(
    settings: MemoryBudget, device: tuple[Snapshot, Snapshot], peak: int, more: int
) -> None:
    for low, high in zip(every(settings, *device, peak), every(settings, *device, peak + more), strict=True):
        assert low >= high


@given(SETTINGS, devices(), SIZES)
def test_what_warm_up_may_commit_can_stay(settings: MemoryBudget, device: tuple[Snapshot, Snapshot], peak: int) -> None:
    """S10, S9: the bound is never above what the very same snapshots would give in the end."""
    assert committable(settings, *device, peak) <= measured_budget(settings, *device, peak).nbytes


@given(SETTINGS, devices(), SIZES, SIZES)
def test_what_is_committed_is_charged_once(
    settings: MemoryBudget, device: tuple[Snapshot, Snapshot], peak: int, more: int
) -> None:
    """S2: committing takes from free and adds to committed, so it changes no budget."""
    start, now = device
    more = min(more, now.free)
    later = replace(now, free=now.free - more, committed=now.committed + more)
    assert every(settings, start, now, peak) == every(settings, start, later, peak)


@given(SETTINGS, devices(), SIZES)
def test_the_terms_add_up_and_name_what_limits(
    settings: MemoryBudget, device: tuple[Snapshot, Snapshot], peak: int
) -> None:
    for budget in (measured_budget(settings, *device, peak), estimated_budget(settings, *device, peak)):
        assert isinstance(budget, Budget)
        by_share, by_memory = budget.requested - budget.non_kv, budget.headroom - budget.margin
        assert (budget.limited_by == "utilization") == (by_share < by_memory)
        left = min(by_share, by_memory) - budget.transient_peak - budget.graph_estimate
        assert budget.nbytes == max(0, left)
        assert min(budget[5:10]) >= 0  # non_kv to graph_estimate
