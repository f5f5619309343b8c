"""examples/engine.py as people run it: S1, S4, S8, S10, S11, S13, S15 under a decoder whose answers show every slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import engine
from tinyllm.life import Engine, Options
from tinyllm.model import Model
from tinyllm.shape import ModelShape
from tinyllm.workload import digest, requests

REPOSITORY = Path(__file__).resolve().parent.parent
REQUESTS = 99
"""Half as many as the example serves by default, and still more than enough to run out of slots often."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """The command sets these for its own process, which here is the tests'."""
    before, threads = dict(os.environ), torch.get_num_threads()
    yield
    os.environ.clear()
    os.environ.update(before)
    torch.set_num_threads(threads)


def here(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What the command prints, run in this process."""
    status = engine.main([*arguments, "--json"])
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == int("error" in printed)
    return printed


def command(*arguments: str, status: int = 0) -> dict[str, Any]:
    """What the command prints as a command: one JSON object on standard output."""
    ran = subprocess.run(
        # The first rank that has started waits for the last: on a machine that is busy, for long.
        [sys.executable, "examples/engine.py", "--timeout", "200", *arguments, "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    printed: dict[str, Any] = json.loads(ran.stdout)
    return printed


def check_counts(result: dict[str, Any], requests: int) -> None:
    """What has to have happened for the digest to mean anything."""
    counts, sizing = result["report"]["counts"], result["report"]["sizing"]
    assert counts["finished"] == requests
    # S8: each that was suspended went on, some in place, some from a backup, some from the start.
    assert counts["suspended"] == counts["resumed"] >= 20
    assert counts["restored"] >= 5
    assert counts["started_over"] >= 5
    assert counts["computed_again"] >= 100
    assert counts["admitted"] == requests + counts["started_over"]
    # Some because slots ran out, not only because of the nap.
    (nap,) = result["report"]["naps"]
    assert counts["suspended"] - nap["suspended"] >= 10
    assert nap["suspended"] >= 1
    assert counts["window_blocks_evicted"] >= requests
    # S15: smaller at first, and everything after a third of the requests.
    first, second = result["report"]["resizes"]
    assert first["from"] == second["to"] == list(result["slots"].values())
    assert all(few < many for few, many in zip(first["to"], first["from"], strict=True))
    assert requests // 3 <= second["finished"] < requests // 2
    # S13: capacity, committed and usable are three numbers, and one slot is the null block.
    assert sorted(group["committed"] for group in sizing["groups"]) == sorted(result["slots"].values())
    assert all(group["usable"] == group["committed"] - 1 for group in sizing["groups"])
    assert sizing["warm_up"]["missing"] == []


def test_measured_and_estimated_give_the_same_answers_under_pressure(capsys: pytest.CaptureFixture[str]) -> None:
    measured = here(capsys, "--requests", str(REQUESTS))
    check_counts(measured, REQUESTS)
    sizing = measured["report"]["sizing"]
    assert (measured["mode"], measured["fallback_reason"], sizing["sized_by"]) == ("measured", None, "measurement")
    assert sizing["memory_source"] == "configured"
    assert sizing["budget"]["total"] == 192 << 20
    assert 0 < sizing["nbytes"] <= sizing["budget"]["nbytes"]
    # The measurement beside what the estimate of 0.92 would have given.
    assert sizing["estimate"]["utilization"] == 0.92
    assert sizing["budget"]["utilization"] == 1.0

    estimated = here(capsys, "--requests", str(REQUESTS), "--no-vmm")
    check_counts(estimated, REQUESTS)
    assert (estimated["mode"], estimated["report"]["sizing"]["sized_by"]) == ("estimated", "estimate")
    assert estimated["fallback_reason"] == "disabled by VMMCACHE_DISABLE_DRIVERS"
    assert estimated["slots"] != measured["slots"]
    # I1: where addresses stay, no graph ever has to be captured again. Nobody promises that for plain memory.
    assert measured["report"]["views_moved"] == 0
    assert estimated["report"]["views_moved"] >= 2
    assert estimated["tokens_sha256"] == measured["tokens_sha256"]


def test_the_digest_follows_from_the_requests_alone(capsys: pytest.CaptureFixture[str]) -> None:
    plenty = here(capsys, "--requests", "6")
    little = here(capsys, "--requests", "6", "--memory", "64MiB")
    assert little["slots"] != plenty["slots"]
    assert little["tokens_sha256"] == plenty["tokens_sha256"]
    assert here(capsys, "--requests", "7")["tokens_sha256"] != plenty["tokens_sha256"]


def test_a_block_that_is_damaged_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise equal digests would say nothing about the cache."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "64MiB")
    torch.set_num_threads(1)
    digests = []
    for damaged in (None, "full", "window", "state"):
        served = Engine(Model(ModelShape()), Options("host"))
        served.start()
        served.scheduler.submit(requests(2, vocabulary=512))
        for step in range(40):
            served.step()
            if step == 20 and damaged is not None:
                session = served.scheduler.running[0]
                slot = max(served.scheduler.blocks(session)[damaged])
                layer = served.layout.layers[ModelShape().layers.index(damaged)]
                assert layer.name is not None
                served.manager.views()[layer.name][layer.buffers[0].role][slot].fill_(64)
        digests.append(digest({0: [token for one in served.scheduler.running for token in one.tokens]}))
        served.close()
    assert len(set(digests)) == 4


def test_the_rank_with_the_least_memory_decides_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    alone = here(capsys, "--requests", "3")
    four = command("--requests", "3", "--ranks", "4", "--rank-memory", "1=64MiB", "--rank-memory", "2=2GiB")
    assert [result["mode"] for result in four["ranks"]] == ["measured"] * 4
    assert [result["slots"] for result in four["ranks"]] == [four["slots"]] * 4
    totals = [result["report"]["sizing"]["budget"]["total"] for result in four["ranks"]]
    assert totals == [192 << 20, 64 << 20, 2 << 30, 192 << 20]
    # What rank 1 can hold, and none of the others would have to be content with.
    assert four["report"]["sizing"]["nbytes"] <= 64 << 20
    assert [result["tokens_sha256"] for result in four["ranks"]] == [alone["tokens_sha256"]] * 4


def test_one_rank_that_cannot_makes_all_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    alone = here(capsys, "--requests", "3")
    two = command("--requests", "3", "--ranks", "2", "--fail-probe", "1")
    assert [result["mode"] for result in two["ranks"]] == ["estimated"] * 2
    assert {result["fallback_reason"] for result in two["ranks"]} == {"rank 1: disabled by VMMCACHE_DISABLE_DRIVERS"}
    assert two["ranks"][0]["slots"] == two["ranks"][1]["slots"]
    assert two["tokens_sha256"] == alone["tokens_sha256"]


@pytest.mark.parametrize(
    ("stage", "kind"),
    # "construct" and "serve" end as these do: while agreeing, and while computing together.
    [("warmup", "RankLost"), ("finalize", "RankError"), ("sleep", "RankError")],
)
def test_a_rank_that_drops_out_is_an_error_on_the_other(stage: str, kind: str) -> None:
    result = command("--requests", "3", "--ranks", "2", "--kill", f"1@{stage}", status=1)
    assert result["error"]["type"] == result["ranks"][0]["error"]["type"] == kind
    assert result["error"]["gone"] == {"1": "ended by SIGKILL"}
    assert "rank 1 ended by SIGKILL" in result["error"]["message"]
    if kind == "RankError":
        assert result["error"]["rank"] == 1


def test_what_does_not_fit_is_an_error_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = here(capsys, "--requests", "3", "--memory", "8MiB", "--no-vmm")["error"]
    assert error["type"] == "QuotaError"
    assert "needed" in error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--requests", "2"],
        ["--ranks", "3"],
        ["--ranks", "2", "--kill", "1@dinner"],
        ["--ranks", "2", "--kill", "2@serve"],
        ["--ranks", "2", "--rank-memory", "7=1GiB"],
        ["--fail-probe", "1"],
    ],
)
def test_wrong_use_ends_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        engine.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def test_people_get_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--requests", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "measured"
    assert "3 finished" in lines[2]


@pytest.mark.gpu
def test_graphs_captured_in_warm_up_serve_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """T10: through the final commit, growth and sleep, where addresses stay."""
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU here")
    measured = here(capsys, "--requests", "60")
    estimated = here(capsys, "--requests", "60", "--no-vmm")
    assert measured["tokens_sha256"] == estimated["tokens_sha256"]
    graphs = measured["report"]["graphs"]
    assert graphs["replayed"] > 0
    if measured["mode"] == "measured":
        assert graphs["captured"] == len(graphs["sizes"])
