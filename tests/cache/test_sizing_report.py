"""S2, S3, S6, S13: a report has every number and every constant, for people, and for programs by a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.test_schemas import _changed, _wrong, schema, strict
from vmmcache import MemoryBudget, SizingReport
from vmmcache.cache.fitting import PlanInputs, alignment_loss, fit
from vmmcache.cache.report import Registered, group_sizes, warm_up_fields
from vmmcache.cache.sizing import default_estimate, estimated_budget, measured_budget
from vmmcache.cache.snapshots import Snapshot
from vmmcache.cache.warmup import WarmupLog
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, ConstraintPolicy, PlanWarning, Request
from vmmcache.units import GIB, MIB

LAYOUT = CacheLayout(16, [Attention([Buffer("latent", 16 * 576 * 2)], count=61)])
LONG = Batch([Request(1 << 22, (1 << 22) - 1, ConstraintPolicy.FIT_TO_QUOTA)])


@pytest.fixture(scope="module")
def report() -> SizingReport:
    """A report in which nothing is left at its default."""
    settings = MemoryBudget(utilization=0.9, margin_fraction=0.25)
    start = Snapshot(78 * GIB, 80 * GIB, "driver", 0, 0, 0, "start")
    warm = Snapshot(20 * GIB, 80 * GIB, "driver", 4 * GIB, 6 * GIB, 3 * GIB, "warm")
    budget = measured_budget(settings, start, warm, warm.transient_peak)
    log = WarmupLog()
    log.ran("mixed_step", tokens=8192)
    log.ran("prompt_logprobs", rows=1024, width=0.5, note="full", eager=True)
    log.skipped("encoder", "the model has none")
    inputs = PlanInputs(LAYOUT, 2 * MIB, "layer-major", (LONG,), null_block=True)
    with pytest.warns(PlanWarning):
        plan = fit(inputs, budget.nbytes, aligned=True, budget=budget)
    return SizingReport(
        mode="measured",
        sized_by=settings.sized_by("measured"),
        device="cuda:0",
        memory_source=warm.source,
        settings=settings,
        snapshots=(start, warm),
        budget=budget,
        estimate=default_estimate(settings, start, warm, warm.transient_peak),
        peak_source="torch's allocator: most reserved",
        granule=plan.granule,
        groups=group_sizes(plan, [plan.groups[0].slots + 5000]),
        nbytes=plan.nbytes,
        alignment_loss=alignment_loss(plan).nbytes,
        reductions=plan.reductions,
        **warm_up_fields(log),
        rank=1,
        ranks=4,
        registered=(Registered("nixl", 61, plan.nbytes),),
    )


@pytest.fixture(scope="module")
def estimated() -> SizingReport:
    """The other path, with as little as there can be."""
    start = Snapshot(78 * GIB, 80 * GIB, "runtime", stage="start")
    profiled = replace(start, free=40 * GIB, stage="profiled")
    settings = MemoryBudget(graph_estimate=GIB)
    budget = estimated_budget(settings, start, profiled, 2 * GIB)
    plan = fit(PlanInputs(LAYOUT, 1), budget.nbytes, budget=budget)
    return SizingReport(
        mode="estimated",
        fallback_reason="cuda: no library",
        sized_by=settings.sized_by("estimated"),
        device="cuda:0",
        memory_source="runtime",
        settings=settings,
        budget=budget,
        granule=1,
        groups=group_sizes(plan, [plan.groups[0].slots]),
        nbytes=plan.nbytes,
    )


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema("sizing"))
    assert schema("sizing")["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_both_paths_say_what_the_schema_says_and_nothing_more(report: SizingReport, estimated: SizingReport) -> None:
    for one in (report, estimated, manual(estimated)):
        said = one.to_dict()
        strict("sizing").validate(said)
        assert json.loads(json.dumps(said)) == said


def manual(report: SizingReport) -> SizingReport:
    """S12: a stated size has no budget."""
    return replace(report, settings=MemoryBudget(nbytes=GIB), sized_by="bytes", budget=None)


def test_every_term_and_every_constant_is_there(report: SizingReport) -> None:
    """S2: both constants are printed, whoever set them."""
    said = report.to_dict()
    assert said["constants"] == {
        "utilization": 0.9,
        "margin_fraction": 0.25,
        "margin_floor": 256 * MIB,
        "warmup_reserve": 0.1,
        "graph_estimate": 0,
        "encoder_reserve": 0,
    }
    terms = said["budget"]
    assert terms["requested"] == 72 * GIB
    assert terms["margin"] == 768 * MIB
    assert terms["nbytes"] == min(
        terms["requested"] - terms["non_kv"], terms["headroom"] - terms["margin"]
    ) - terms["transient_peak"]  # fmt: skip
    assert said["estimate"]["utilization"] == 0.92
    assert [snapshot["stage"] for snapshot in said["snapshots"]] == ["start", "warm"]


def test_capacity_committed_and_usable_are_three_numbers(report: SizingReport) -> None:
    """S13, S3."""
    (group,) = report.groups
    assert group.capacity == group.committed + 5000
    assert group.usable == group.committed - 1
    assert (group.alignment, group.committed % 1024) == (1024, 0)
    assert group.floor <= group.committed
    assert group.slot_bytes == 61 * 18432
    assert report.alignment_loss >= 0


def test_what_ranks_agreed_on_is_not_counted_as_lost_by_alignment() -> None:
    """S3, S10."""
    inputs = PlanInputs(LAYOUT, 2 * MIB, "layer-major")
    fitted = fit(inputs, 9 * GIB, aligned=True)
    (loss,) = alignment_loss(fitted).slots
    (group,) = fitted.groups
    agreed = fitted._replace(groups=(group._replace(slots=group.slots - 4096),))
    (sizes,) = group_sizes(agreed, [group.slots], alignment_loss(fitted).slots)
    assert (sizes.committed, sizes.lost) == (group.slots - 4096, loss)
    assert 0 < loss < 1024


def test_people_can_read_all_of_it(report: SizingReport) -> None:
    """S6: shapes that were left out, and those of which nobody spoke, are in it."""
    text = str(report)
    (group,) = report.groups
    for part in (
        "KV cache on cuda:0, rank 1 of 4",
        "measured path, sized by what was measured after warm-up",
        "by utilization 0.9 of 80 GiB: 72 GiB less",
        "beside the cache",
        "driver says so",
        "a margin of 768 MiB",
        "transient peak (torch's allocator",
        "for the cache: the smaller of the first two, less the rest",
        "an estimate at utilization 0.92 would have given",
        f"{group.usable:,}",
        "was cut from 4194304 to",
        "warm-up ran: mixed_step (tokens=8192), prompt_logprobs (rows=1024",
        "warm-up left out encoder: the model has none",
        "warm-up said nothing of: sampler, rejection_sampler, largest_graph",
        "registered with nixl: 61 segments",
    ):
        assert part in text, part
    assert max(map(len, text.splitlines())) <= 140


def test_the_other_path_says_why_it_was_taken(estimated: SizingReport) -> None:
    text = str(estimated)
    assert "estimated path, sized by an estimate" in text
    assert "not measured: cuda: no library" in text
    assert "1 GiB  graphs that were not captured yet" in text
    assert "margin" not in text
    assert "sized by the caller, in bytes" in str(manual(estimated))
    assert "requested" not in str(manual(estimated))


@pytest.mark.parametrize(("more", "told"), [(True, "less"), (False, "more")])
def test_the_estimate_beside_it_is_compared(report: SizingReport, more: bool, told: str) -> None:
    assert report.budget is not None
    other = report.budget.nbytes + (-GIB if more else GIB)
    estimate = report.budget._replace(nbytes=other)
    assert f": 1 GiB {told}" in str(replace(report, estimate=estimate))


def wrong(said: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Reports with one thing wrong each."""
    paths: tuple[tuple[str | int, ...], ...] = (
        (),
        ("constants",),
        ("snapshots", 0),
        ("budget",),
        ("estimate",),
        ("groups", 0),
        ("reductions", 0),
        ("warm_up",),
        ("warm_up", "exercised", 0),
        ("warm_up", "skipped", 0),
        ("registered", 0),
    )
    for path in paths:
        yield from _wrong(said, *path)
    yield _changed(said, "schema", value=2)
    yield _changed(said, "mode", value="estimated")
    yield _changed(said, "fallback_reason", value="why, although it was measured")
    yield _changed(said, "sized_by", value="bytes")
    yield _changed(said, "budget", value=None)
    yield _changed(said, "groups", value=[])
    yield _changed(said, "groups", 0, "usable", value=0)
    yield _changed(said, "constants", "utilization", value=1.5)
    yield _changed(said, "warm_up", "missing", value=["everything"])
    yield _changed(said, "reductions", 0, "capacity", value=[7])


def test_what_is_not_so_is_noticed(report: SizingReport) -> None:
    for one in wrong(report.to_dict()):
        with pytest.raises(ValidationError):
            strict("sizing").validate(one)


def test_a_reader_may_meet_keys_of_a_later_version(report: SizingReport) -> None:
    Draft202012Validator(schema("sizing")).validate(report.to_dict() | {"later": 1})
