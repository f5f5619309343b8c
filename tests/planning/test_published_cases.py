"""The planner agrees with every published figure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.support import FIT, batch_of, cases, layout_of, one_buffer
from vmmcache.errors import QuotaError
from vmmcache.planning import (
    Attention,
    Batch,
    Buffer,
    CacheLayout,
    Plan,
    PlanWarning,
    Request,
    Ssm,
    default_granule,
    longest_request,
    plan,
)
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.split import split
from vmmcache.units import MIB, align_up

# Upstream takes scratch blocks off a request's own blocks even where they belong to the shared prompt, which the
# request does not own: here one slot fewer than the request really holds. Ours counts scratch outside the prompt only.
SCRATCH_IN_PROMPT = 10
TPB8 = CacheLayout(8, [one_buffer(128, 2048), one_buffer(None, 4096), one_buffer(8, 1024)])


def least(plan: Plan) -> list[int]:
    return [group.min_slots for group in plan.groups]


@pytest.mark.parametrize("case", list(enumerate(cases("derived", "batch_slots"))), ids=lambda case: str(case[0]))
def test_slots_of_a_batch_and_the_groups_they_come_from(case: tuple[int, dict[str, Any]]) -> None:
    number, expected = case
    layout = layout_of(expected)
    batch = batch_of(expected["kv"], expected["sys"])
    planned = plan(layout, constraints=[batch], scratch_rewind=expected["rewind"])
    assert [list(group.slot_bytes) for group in layout.groups] == expected["slot_sizes"]
    assert [cycle.group for cycle in layout.life_cycles] == expected["lc_to_pg"]
    slots = [13, *expected["slots"][1:]] if number == SCRATCH_IN_PROMPT else expected["slots"]
    assert list(planned.demand[0]) == slots


@pytest.mark.parametrize("case", cases("derived", "min_slots"))
def test_floors_of_constraints(case: dict[str, Any]) -> None:
    constraints = [batch_of(batch) for batch in case["constraints"]]
    assert least(plan(layout_of(case), constraints=constraints, max_util_for_resume=case["u"])) == case["min"]


@pytest.mark.parametrize("case", cases("derived", "grains"))
def test_most_slots_in_a_number_of_granules(case: dict[str, Any]) -> None:
    buffers = [Buffer(str(index), size) for index, size in enumerate(case["slot_sizes"])]
    footprint = Footprint(CacheLayout(1, [Attention(buffers)]), case["granularity"], "block-major")
    slots = footprint.most_slots(0, case["grains"])
    assert (slots, footprint.granules(0, slots)) == (case["slots"], case["used"])


@pytest.mark.parametrize("case", cases("derived", "plan"))
def test_a_whole_plan_with_fixed_constraints(case: dict[str, Any]) -> None:
    granule = default_granule(case["quota"])
    planned = plan(
        layout_of(case),
        align_up(case["quota"], granule),
        granule,
        constraints=[batch_of(batch) for batch in case["constraints"]],
        typical_step=batch_of(case["typical"]) if case["typical"] else None,
        max_util_for_resume=case["u"],
    )
    assert granule == case["granularity"]
    assert least(planned) == case["min"]
    assert [group.slots for group in planned.groups] == case["slots"]
    assert planned.nbytes == case["bytes"]


@pytest.mark.filterwarnings("ignore::vmmcache.planning.PlanWarning")
@pytest.mark.parametrize("case", cases("derived", "fit"))
def test_the_longest_request_that_fits(case: dict[str, Any]) -> None:
    place, index = case["marked"]
    constraints = [batch_of(batch) for batch in case["constraints"]]
    entries = list(constraints[place].requests)
    entries[index] = Request(entries[index].capacity, entries[index].history_length, FIT)
    constraints[place] = Batch(entries)

    def fit() -> Plan:
        return plan(
            layout_of(case),
            case["quota"],
            default_granule(case["quota"]),
            constraints=constraints,
            max_util_for_resume=case["u"],
            scratch_rewind=case["rewind"],
        )

    if case["largest_grid_fit"] is None:
        with pytest.raises(QuotaError):
            fit()
        return
    planned = fit()
    request = planned.resolved_constraints[place].requests[index]
    assert request.capacity == case["largest_grid_fit"]
    assert request.capacity - request.history_length == case["headroom"]
    assert planned.usable == case["usable"] >= planned.nbytes


@pytest.mark.parametrize("case", cases("upstream", "batch_slots_tpb8_keys_w128_full_w8"))
def test_upstream_slots_of_a_batch(case: dict[str, Any]) -> None:
    (demand,) = plan(TPB8, constraints=[batch_of(case["kv"], case["sys"])]).demand
    assert demand[1] == case["full_only"] if "full_only" in case else list(demand) == case["slots"]


@pytest.mark.parametrize("case", cases("upstream", "min_slots_tpb8_keys_w128_full_w8"))
def test_upstream_floors(case: dict[str, Any]) -> None:
    constraints = [batch_of(batch["kv"]) for batch in case["constraints"]]
    assert least(plan(TPB8, constraints=constraints, max_util_for_resume=case["u"])) == case["min"]


@pytest.mark.parametrize(("quota", "granule"), cases("upstream", "gpu_granularity"))
def test_upstream_granules(quota: int, granule: int) -> None:
    assert default_granule(quota) == granule


def test_upstream_placeholder_costs_one_state() -> None:
    expected: Any = cases("upstream", "ssm_zero_capacity_tpb32")
    layout = CacheLayout(32, [Ssm([Buffer("state", 999)]), one_buffer(None, 64)])
    assert plan(layout, constraints=[batch_of(expected["kv"])]).demand == ((expected["ssm"], expected["attn"]),)


def test_upstream_granules_to_slots_and_back() -> None:
    case: Any = cases("upstream", "grains")
    buffers = [Buffer(str(index), size) for index, size in enumerate(case["slot_sizes"])]
    footprint = Footprint(CacheLayout(1, [Attention(buffers)]), case["granularity"], "block-major")
    granules = footprint.granules(0, case["min_slots"])
    slots = footprint.most_slots(0, granules)
    assert granules == 192
    assert slots >= case["min_slots"]
    assert footprint.granules(0, slots) <= granules


def test_upstream_ratio_against_floors_that_take_the_whole_quota() -> None:
    case: Any = cases("upstream", "ratio_min_slots")
    layers = [
        Attention([Buffer(str(index), size) for index, size in enumerate(sizes)], window)
        for sizes, window in zip(case["slot_sizes"], (None, 8, 9), strict=True)
    ]
    layout = CacheLayout(1, layers)
    footprint = Footprint(layout, case["granularity"], "block-major")
    slots = split(layout, footprint, 710, case["min_slots"], [2, 5, 3], explicit=True)
    assert footprint.total(case["min_slots"]) == 710
    assert slots == [157, 3925, 157]


def test_upstream_rounding() -> None:
    case: Any = cases("upstream", "rounding_tpb32")
    layout = CacheLayout(32, [one_buffer(32, 2 * MIB - 1), one_buffer(None, 2 * MIB)])
    planned = plan(layout, case["quota"], 2 * MIB, constraints=[batch_of(case["constraint"])])
    assert [group.slots for group in planned.groups] == [case["slots"]["2MiB-1"], case["slots"]["2MiB"]]


@pytest.mark.parametrize("case", cases("upstream", "clamp_max_seq_len_tpb32_slot2MiB"))
def test_upstream_longest_sequence(case: dict[str, Any]) -> None:
    layout = CacheLayout(32, [one_buffer(window, 2 * MIB) for window in case["windows"]])
    quota = len(case["windows"]) * 2 * MIB
    assert longest_request(layout, quota, 2 * MIB, batch=case["b"], upper=case["ub"]) == case["out"]


def test_upstream_scratch_reuse() -> None:
    case: Any = cases("upstream", "scratch_tpb32_w128_sink32_16swa16full")
    windowed = Attention([Buffer("key", 64)], 128, 32, count=16)
    layout = CacheLayout(32, [windowed, Attention([Buffer("key", 96)], count=16)])
    assert list(plan(layout, constraints=[batch_of(case["kv"])], scratch_rewind=0).demand[0]) == case["slots"]


def csa() -> list[Attention]:
    return [one_buffer(128, 2048), Attention([Buffer("key", 2048), Buffer("scale", 512)]), one_buffer(8, 2048)]


def test_a_quota_below_the_floors_is_refused_where_upstream_grows() -> None:
    case: Any = cases("upstream", "quota_below_floors_tpb8")
    with pytest.raises(QuotaError) as refusal:
        plan(CacheLayout(8, csa() * 6), case["gpu"], case["gpu"])
    assert (refusal.value.cause, refusal.value.usable, refusal.value.configured) == ("fixed", case["gpu"], case["gpu"])
    assert refusal.value.needed == 3 * case["gpu"]  # a granule for each of three pools


@pytest.mark.parametrize(("mix", "expected"), list(dict(cases("upstream", "slot_bytes_tpb8")).items()))
def test_upstream_slot_bytes(mix: str, expected: list[list[int]]) -> None:
    hca = [
        Attention([Buffer("key", 2048), Buffer("value", 1024)], 128),
        Attention([Buffer("key", 512)]),
    ]
    kinds: dict[str, list[Attention]] = {"swa": [one_buffer(128, 2048)], "csa": csa(), "hca": hca}
    layers = []
    for term in mix.split("+"):
        number = term.rstrip("swach")
        layers += kinds[term[len(number) :]] * int(number or 1)
    slot_bytes = {cycle.window: list(cycle.slot_bytes) for cycle in CacheLayout(8, layers).life_cycles}
    assert [slot_bytes[window] for window in (128, None, 8)] == expected


@pytest.mark.parametrize("case", cases("upstream", "fit_production"))
def test_usable_is_what_was_allocated_in_production(case: dict[str, Any]) -> None:
    granule = 16 * MIB
    layout = CacheLayout(32, [one_buffer(None, 65536)])
    planned = plan(layout, case["quota"], granule)
    assert planned.usable == planned.nbytes == case["allocated"]
    with pytest.warns(PlanWarning):
        fitted = plan(layout, case["quota"], granule, constraints=[Batch([Request(1 << 30, (1 << 30) - 4, FIT)])])
    assert fitted.nbytes == case["allocated"]


def test_how_many_published_cases_there_are() -> None:
    sections = {"batch_slots": 60, "min_slots": 30, "grains": 30, "plan": 30, "fit": 60}
    assert {name: len(cases("derived", name)) for name in sections} == sections
