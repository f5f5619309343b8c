"""I14: managers on several ranks take one path and hold the same counts; one start of Python for all scenarios."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.cache.managed import FULL, light_collections, with_driver
from tests.cache.manager_ranks import SCENARIOS, TIMEOUT_S
from tests.conftest import ROOT
from tests.fine_host import FineHostDriver
from vmmcache import ConfigError, ExtensibleTensor, OutOfDeviceMemory, merge_measurements
from vmmcache.testing import RecordingDriver
from vmmcache.testing.recording import out_of_memory
from vmmcache.units import MIB

Answers = dict[str, list[dict[str, Any] | None]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What every rank of every scenario said; None for one that was killed."""
    folder = tmp_path_factory.mktemp("ranks")
    child = subprocess.run(
        [sys.executable, "-m", "tests.cache.manager_ranks", str(folder)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("VMMCACHE_")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    problems = "".join(path.read_text() for path in folder.glob("*.error"))
    assert (child.returncode, problems) == (0, ""), child.stderr + problems
    return {
        name: [
            json.loads(path.read_text()) if (path := folder / f"{name}-{rank}.json").exists() else None
            for rank in range(size)
        ]
        for name, (size, _) in SCENARIOS.items()
    }


def test_ranks_with_other_amounts_of_memory_hold_the_same(answers: Answers) -> None:
    """S10: the least of all, before warm-up and after, and requests that shrink do so alike."""
    ranks = answers["unequal"]
    for rank, said in enumerate(ranks):
        assert said is not None
        assert said.pop("ranks") == [rank, 3]
    assert ranks[0] == ranks[1] == ranks[2]
    assert ranks[0] is not None
    assert ranks[0]["reductions"][0] < 1 << 14
    assert ranks[0]["bytes"] <= 8 * MIB, "that of the rank with 9 MiB, less its margin"


def test_stages_with_other_layers_number_slots_alike(answers: Answers) -> None:
    counts: dict[str, set[int]] = {}
    for said in answers["stages"]:
        assert said is not None
        for key, count in zip(said["keys"], said["committed"], strict=True):
            counts.setdefault(str(key), set()).add(count)
    assert [len(found) for found in counts.values()] == [1, 1]


@pytest.mark.parametrize(
    ("name", "reason"), [("no driver", "rank 1: disabled"), ("no addresses", "rank 2: DriverError")]
)
def test_where_one_cannot_all_fall_back(answers: Answers, name: str, reason: str) -> None:
    """S10, S5."""
    for said in answers[name]:
        assert said is not None
        assert said["mode"] == "estimated"
        assert said["reason"].startswith(reason)
        assert said["committed"] == answers[name][0]["committed"]  # type: ignore[index]  # none is missing
        if "insist" in said:
            assert said["insist"]["error"] == "DriverUnavailable"


def test_what_one_cannot_do_none_does_and_all_go_on(answers: Answers) -> None:
    for rank, said in enumerate(answers["refused"]):
        assert said is not None
        own = {"plan": "PlanError", "commit": "DriverError", "sleep": "StateError"}
        own |= {"resize": "QuotaError", "wake": "DriverError"}
        for what, error in own.items():
            assert said[what]["error"] == (error if rank == 1 else "RankError"), what
            assert rank == 1 or said[what]["rank"] == 1
        assert said["state"][:4] == ["warming", "warming", [4, 4], "ready"]
        assert said["state"][5:8] == ["ready", "asleep", "ready"]
        assert said["state"][4] == said["state"][8]
        assert said["kept"]
        assert said["mapped"] == 0, "those that had woken sleep again"


def check_apart(answers: Answers, step: str, errors: Sequence[str], states: Sequence[str], slots: object) -> list[str]:
    """What came of one step on three ranks; everything that each of their errors says."""
    texts = []
    for said, error, state in zip(answers["apart"], errors, states, strict=True):
        assert said is not None
        assert (said[step]["error"], said[step]["state"]) == (error, state), said[step]
        assert said[step]["slots"] == slots or state == "asleep"
        assert error != "RankError" or said[step]["rank"] == 1
        texts.append("\n".join([said[step]["text"], *said[step]["notes"]]))
    return texts


OWN: Final = ("RankError", "DriverError", "RankError")
"""Of the rank on which it went wrong, and of the others."""


def test_ranks_come_together_again_where_undoing_fails_on_one(answers: Answers) -> None:
    """I14: after finalize and resize all hand out what each has, and every error says so; the next call mends it."""
    for step, state in ("finalize", "warming"), ("resize", "ready"):
        first = answers["apart"][0]
        assert first is not None
        backed = first[step]["backed"]
        slots = [4, 4] if step == "finalize" else backed
        texts = check_apart(answers, step, OWN, [state] * 3, slots)
        assert "undoing failed too" in texts[0]
        assert all("undoing failed on rank 0: host: " in text for text in texts[1:])
        more = [said is not None and said[step]["backed"] != slots for said in answers["apart"]]
        assert more == ([True, False, False] if step == "finalize" else [False, True, True])
        for differs, text in zip(more, texts, strict=True):
            assert (f"slots all ranks hand out {slots}, until {step}() succeeds" in text) == differs
    for said in answers["apart"]:
        assert said is not None
        assert said["resize again"]["slots"] == said["resize again"]["backed"] == said["whole"]


def test_all_ranks_sleep_or_none_also_where_a_driver_refuses_after_all_have_agreed(answers: Answers) -> None:
    """S11, I14: each error says what all ranks are, and what brings them together."""
    first = answers["apart"][0]
    assert first is not None
    for text in check_apart(answers, "kept", OWN, ["asleep"] * 3, None):
        assert "all ranks are asleep; call sleep() again on every rank" in text
    for text in check_apart(answers, "refused", OWN, ["ready"] * 3, first["whole"]):
        assert "all ranks are awake again, without what suspended requests held" in text
    for text in check_apart(answers, "stuck", OWN, ["asleep", "ready", "ready"], first["whole"]):
        assert "rank 0 could not wake again and is asleep (DriverError: host: create" in text
        assert "the other ranks are awake; call sleep() again on every rank" in text
    check_apart(answers, "wake", OWN, ["asleep"] * 3, None)
    for said in answers["apart"]:
        assert said is not None
        for step, state in ("kept again", "asleep"), ("all", "asleep"), ("awake", "ready"):
            assert ("error" not in said[step], said[step]["state"]) == (True, state)
        assert (said["left"], said["lost"]) == (0, True)
        assert said["awake"]["slots"] == said["awake"]["backed"] == said["whole"]


@pytest.mark.parametrize("stage", ["construct", "warm-up", "finalize", "sleep"])
def test_a_rank_that_is_killed_is_an_error_on_the_others(answers: Answers, stage: str) -> None:
    """S10: within the timeout, and named."""
    first, killed, third = answers[f"died at {stage}"]
    assert killed is None
    for said in (first, third):
        assert said is not None
        assert (said["error"], said["rank"]) == ("RankError", 1)
        assert said["seconds"] < TIMEOUT_S + 10


def test_an_engine_can_carry_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: plain integers out, plain integers in; nobody else is asked."""
    drivers = FineHostDriver(), RecordingDriver(FineHostDriver())
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with light_collections(), with_driver(drivers[0]) as one, with_driver(drivers[1]) as two:
        other = ExtensibleTensor(8 * MIB, drivers[1])
        other.commit(8 * MIB)
        bound = merge_measurements([manager.committable() for manager in (one, two)])
        for manager in (one, two):
            manager.ensure_bound(bound)
        assert one.ensure(200) == two.ensure(200)
        assert one.committed[FULL] < 200
        numbers = [manager.measure() for manager in (one, two)]
        assert all(type(number) is int for number in numbers[0])
        assert one.state == two.state == "warming"
        agreed = merge_measurements(numbers)
        # One lacks memory after all: it is as it was, and all measure again.
        drivers[1].fail(3, verb="create", error=out_of_memory)
        with pytest.raises(OutOfDeviceMemory):
            two.apply(agreed)
        assert two.state == "warming"
        assert two.slots.counts == two.committed
        drivers[1].heal()
        agreed = merge_measurements([manager.measure() for manager in (one, two)])
        for manager in (one, two):
            manager.apply(agreed)
        assert one.committed == two.committed == one.slots.counts
        with pytest.raises(ConfigError):
            merge_measurements([agreed, [1]])
        other.close()
