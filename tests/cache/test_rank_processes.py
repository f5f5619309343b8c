"""TorchRanks between processes: agreement, and what the others see of one that is killed, stopped, or fails (S10, I14).

Two sets of processes serve all tests. In the larger one the store is the test's, as it is an agent's under torchrun, so
that any rank may be killed; in the smaller one it is that of rank 0, and the default group has no working collective.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.cache.rank_world import Error, World, world
from vmmcache.cache.ranks import GroupNumbers, Measurement
from vmmcache.cache.ranks._store import TICK_S

PLENTY_S = 60.0
NEVER_S = 600.0
SOON_S = 2.0

# Two that live, and one that does not: which, and at which of its requests it ends. Those of the first agreement after
# joining are set and add, and for the last to come multi_get and compare_set, else wait and get.
KILLS = {
    "before it comes, first": ([0, 3, 4], 0, 0),
    "come but not counted, last": ([3, 4, 5], 5, 1),
    "counted, with the outcome to make, first": ([1, 3, 4], 1, 2),
    "with the outcome made but not written, last": ([3, 4, 6], 6, 3),
    "with the outcome written, first": ([2, 3, 4], 2, None),
    "while it waits, last": ([3, 4, 7], 7, None),
}


def measurement(rank: int) -> list[int]:
    full = GroupNumbers((("attention", None, 0),), 1000 + rank, 2000, 32)
    window = GroupNumbers((("attention", 512, 0),), 50 - rank, 64, 3)
    return Measurement("measured", (full, window) if rank % 2 else (full,), (4096 - rank,)).to_ints()


@pytest.fixture(scope="module")
def eight() -> Iterator[World]:
    """Eight ranks whose store is hosted here."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with world(8) as ranks:
        assert ranks.ask(range(8), "start", store.port, "gloo", True) == [None] * 8
        groups = {
            "pair": [3, 4],
            "two": [2, 6],
            "four": [0, 3, 5, 6],
            **{name: members for name, (members, *_) in KILLS.items()},
        }
        for name, members in groups.items():
            assert ranks.ask(range(8), "group", name, members) == [None] * 8
        yield ranks
        pids = ranks.pids
    _gone(pids)


@pytest.fixture(scope="module")
def hosted() -> Iterator[World]:
    """Three ranks, the first of which hosts the store; collectives raise."""
    with world(3) as ranks:
        (port,) = ranks.ask([0], "host")
        assert ranks.ask(range(3), "start", port, "none", False) == [None] * 3
        yield ranks
        pids = ranks.pids
    _gone(pids)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def _gone(pids: Sequence[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# All well -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "members"), [("two", [2, 6]), ("four", [0, 3, 5, 6]), ("all", list(range(8)))])
def test_ranks_agree(eight: World, group: str, members: list[int]) -> None:
    size = len(members)
    assert eight.ask(members, "make", "ranks", group, PLENTY_S) == [(rank, size) for rank in range(size)]
    for stage in "once", "twice":
        for rank, member in enumerate(members):
            eight.tell(member, "call", "ranks", "minimum", stage, [rank, -rank])
        assert [eight.hear(member) for member in members] == [[0, 1 - size]] * size
    for rank, member in enumerate(members):
        eight.tell(member, "call", "ranks", "gather", "bytes", bytes([rank]) * 9)
    assert [eight.hear(member) for member in members] == [[bytes([rank]) * 9 for rank in range(size)]] * size
    for rank, member in enumerate(members):
        eight.tell(member, "call", "ranks", "agree_reason", "probe", f"reason {rank}" if rank % 2 else None)
    assert [eight.hear(member) for member in members] == ["rank 1: reason 1"] * size
    for rank, member in enumerate(members):
        eight.tell(member, "call", "ranks", "settle", "counts", measurement(rank))
    answers = [eight.hear(member) for member in members]
    assert answers == [answers[0]] * size
    agreed = Measurement.from_ints(answers[0].numbers)
    last = size - 1  # odd
    assert [group.slots for group in agreed.groups] == [992, (50 - last) // 3 * 3]
    assert agreed.capacities == (4096 - last,)
    assert eight.ask(members, "call", "ranks", "close") == [None] * size


def test_what_does_not_go_together_is_refused_on_every_rank_and_the_group_goes_on(hosted: World) -> None:
    everyone = range(3)
    assert hosted.ask(everyone, "make", "ranks", "all", PLENTY_S) == [(rank, 3) for rank in everyone]
    full, window = ("attention", None, 0), ("attention", 512, 0)
    together = Measurement("measured", (GroupNumbers((full, window), 5, 5),)).to_ints()
    apart = Measurement("measured", (GroupNumbers((full,), 5, 5), GroupNumbers((window,), 5, 5))).to_ints()
    for rank in everyone:
        hosted.tell(rank, "call", "ranks", "settle", "counts", apart if rank == 1 else together)
    errors = [hosted.hear(rank) for rank in everyone]
    assert errors == [Error("ConfigError", None, None, None)] * 3
    assert len({error.text for error in errors}) == 1
    assert "measurements[1]='full attention and window 512'" in errors[0].text
    assert hosted.ask(everyone, "call", "ranks", "minimum", "after", [7]) == [[7]] * 3
    assert hosted.ask(everyone, "call", "ranks", "close") == [None] * 3


def test_another_store_can_be_given(hosted: World, tmp_path: Path) -> None:
    file = str(tmp_path / "store")
    assert hosted.ask(range(3), "make", "ranks", "all", PLENTY_S, file) == [(rank, 3) for rank in range(3)]
    assert hosted.ask(range(3), "call", "ranks", "minimum", "a", [7]) == [[7]] * 3
    assert hosted.ask(range(3), "call", "ranks", "close") == [None] * 3


def test_a_process_that_is_not_in_the_group_has_no_part_in_it(eight: World) -> None:
    for error in eight.ask([0, 7], "make", "ranks", "two", PLENTY_S):
        assert error == Error("ConfigError", None, None, None)
        assert "this process is not in it" in error.text


# A rank that fails ----------------------------------------------------------------------------------------------------


def test_a_rank_that_fails_tells_the_others_which_do_not_wait_for_it(hosted: World) -> None:
    hosted.ask(range(3), "make", "ranks", "all", NEVER_S)
    hosted.ask([0], "watch", "ranks", "wait", None)
    hosted.tell(0, "call", "ranks", "minimum", "counts", [1])
    assert hosted.hear(0) == ("at", "wait")
    assert hosted.ask([2], "call", "ranks", "abort", "warm-up", "OutOfDeviceMemory: no room") == [None]
    # Rank 1 has not come, and is not waited for either.
    error = hosted.hear(0)
    assert error == Error("RankError", 2, "counts", "failed")
    assert "rank 2 failed at 'warm-up': OutOfDeviceMemory: no room" in error.text
    assert hosted.ask([1], "call", "ranks", "minimum", "counts", [1]) == [error]


def test_ranks_at_different_stages_are_told_both(hosted: World) -> None:
    hosted.ask(range(3), "make", "ranks", "all", PLENTY_S)
    for rank, stage in enumerate(["counts", "counts", "commit"]):
        hosted.tell(rank, "call", "ranks", "minimum", stage, [1])
    errors = [hosted.hear(rank) for rank in range(3)]
    assert errors == [Error("StateError", None, None, "minimum 'counts'")] * 3
    assert "rank 2 is at minimum 'commit', but rank 0 at minimum 'counts'" in errors[0].text


def test_a_rank_that_is_late_is_named_with_what_its_process_does(hosted: World) -> None:
    hosted.ask(range(3), "make", "ranks", "all", SOON_S)
    late = Error("RankError", 1, "counts", "late")
    for error in hosted.ask([0, 2], "call", "ranks", "minimum", "counts", [1]):
        assert error == late
        assert f"rank 1 has not come within 2 s; its process {hosted.pids[1]} is running" in error.text
    (error,) = hosted.ask([1], "call", "ranks", "minimum", "counts", [1])
    assert error == late
    assert "rank 1 (this one)" in error.text


def test_a_rank_that_is_stopped_is_late_and_not_dead(hosted: World) -> None:
    hosted.ask(range(3), "make", "ranks", "all", SOON_S)
    hosted.signal(2, signal.SIGSTOP)
    late = Error("RankError", 2, "counts", "late")
    for error in hosted.ask([0, 1], "call", "ranks", "minimum", "counts", [1]):
        assert error == late
        assert f"its process {hosted.pids[2]} is stopped" in error.text
    hosted.signal(2, signal.SIGCONT)
    assert hosted.ask([2], "call", "ranks", "minimum", "counts", [1]) == [late]


# Killed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", KILLS)
def test_a_rank_that_is_killed_is_named_by_the_others(eight: World, case: str) -> None:
    """All of them get the same answers up to the same stage, and there the error, long before the timeout."""
    members, victim, request = KILLS[case]
    others = [member for member in members if member != victim]
    number = members.index(victim)
    eight.ask(members, "make", "ranks", case, PLENTY_S)
    eight.ask(members, "watch", "ranks", "wait", None)
    if case.startswith("while it waits"):
        eight.tell(victim, "call", "ranks", "minimum", "counts", [1])
        assert eight.hear(victim) == ("at", "wait")
        eight.signal(victim, signal.SIGKILL)
        eight.tell(others[0], "call", "ranks", "minimum", "counts", [2])
        assert eight.hear(others[0]) == ("at", "wait")
        # It looks, sees that the dead one had come, and goes on waiting for the one that has not.
        time.sleep(4 * TICK_S)
        eight.tell(others[1], "call", "ranks", "minimum", "counts", [2])
    else:
        for other in others:
            eight.tell(other, "call", "ranks", "minimum", "counts", [2])
            assert eight.hear(other) == ("at", "wait")
        eight.ask([victim], "watch", "ranks", None, request)
        eight.tell(victim, "call", "ranks", "minimum", "counts", [1])
        if request is None:
            assert eight.hear(victim) == [1]
            eight.signal(victim, signal.SIGKILL)
    heard = [_answer(eight, other) for other in others]
    dead = "counts"
    if request != 0:
        # It had come: the agreement holds, and the next one finds that it has gone.
        assert heard == [[1]] * 2
        dead = "commit"
        eight.ask(others, "watch", "ranks", None, None)
        heard = eight.ask(others, "call", "ranks", "minimum", dead, [2])
    for error in heard:
        assert error == Error("RankError", number, dead, "dead")
        assert f"rank {number} is gone: its process {eight.pids[victim]} has ended" in error.text
    eight.ask(others, "watch", "ranks", None, None)
    eight.ask(others, "call", "ranks", "close")


def test_ranks_outlive_the_process_group(eight: World) -> None:
    """An engine may destroy its group before it closes its cache."""
    members = [3, 4]
    eight.ask(members, "make", "ranks", "pair", PLENTY_S)
    assert eight.ask(members, "destroy") == [None] * 2
    assert eight.ask(members, "call", "ranks", "agree_reason", "sleep", None) == [None] * 2
    assert eight.ask(members, "call", "ranks", "close") == [None] * 2


def _answer(ranks: World, rank: int) -> Any:
    heard = ranks.hear(rank)
    return ranks.hear(rank) if heard == ("at", "wait") else heard


# The rank that hosts the store: last, since nothing works without it --------------------------------------------------


def test_the_host_of_the_store_is_stopped(hosted: World) -> None:
    """What hangs is a request, and not the rank."""
    hosted.ask(range(3), "make", "ranks", "all", SOON_S)
    hosted.signal(0, signal.SIGSTOP)
    for error in hosted.ask([1, 2], "call", "ranks", "minimum", "counts", [1]):
        assert error == Error("RankError", 0, "counts", "unreachable")
        assert f"does not answer; its process {hosted.pids[0]} is stopped" in error.text
    assert hosted.ask([1, 2], "call", "ranks", "close") == [None] * 2
    hosted.signal(0, signal.SIGCONT)


def test_the_host_of_the_store_is_killed(hosted: World) -> None:
    hosted.ask(range(3), "make", "ranks", "all", PLENTY_S)
    hosted.ask([1], "watch", "ranks", "wait", None)
    hosted.tell(1, "call", "ranks", "minimum", "counts", [1])
    assert hosted.hear(1) == ("at", "wait")
    hosted.signal(0, signal.SIGKILL)
    hosted.tell(2, "call", "ranks", "minimum", "counts", [1])
    for error in hosted.hear(1), hosted.hear(2):
        assert error == Error("RankError", 0, "counts", "dead")
        assert f"its process {hosted.pids[0]} has ended, and the store cannot be reached" in error.text
    hosted.ask([1, 2], "call", "ranks", "close")
    assert (
        hosted.ask([1, 2], "call", "ranks", "minimum", "after", [1]) == [Error("StateError", None, None, "closed")] * 2
    )
