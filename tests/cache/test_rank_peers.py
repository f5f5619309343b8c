"""What is known of a rank's process on the same machine, and TorchRanks where there is one process or none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

from vmmcache import ConfigError, StateError, TorchRanks
from vmmcache.cache.ranks._peers import Process, here


@pytest.fixture
def child() -> Iterator[Callable[[str], Process]]:
    """Starts a process of the name given, which waits for a signal."""
    pids = []

    def start(name: str) -> Process:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            Path("/proc/self/comm").write_text(name)
            found = here()
            assert found is not None
            os.write(write, str(found.process.started).encode())
            while True:
                signal.pause()
        os.close(write)
        pids.append(pid)
        started = int(os.read(read, 32))
        os.close(read)
        return Process(pid, started)

    yield start
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_this_process_runs_and_one_of_the_same_number_and_another_start_has_ended() -> None:
    found = here()
    assert found is not None
    assert found.process.condition == "running"
    assert Process(os.getpid(), found.process.started + 1).condition == "ended"
    assert here() == found


@pytest.mark.parametrize("name", ["rank", "rank) Z (a", "Z Z Z)"])
def test_a_process_is_seen_running_stopped_and_ended_whatever_its_name(
    child: Callable[[str], Process], name: str
) -> None:
    process = child(name)
    seen = [process.condition]
    # At the end it is not waited for, and so still in the table of processes.
    for number, change in (
        (signal.SIGSTOP, os.WSTOPPED),
        (signal.SIGCONT, os.WCONTINUED),
        (signal.SIGKILL, os.WEXITED | os.WNOWAIT),
    ):
        os.kill(process.pid, number)
        os.waitid(os.P_PID, process.pid, change)
        seen.append(process.condition)
    assert seen == ["running", "stopped", "running", "ended"]


def test_a_process_that_was_waited_for_has_ended() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert Process(pid, 1).condition == "ended"


# torch.distributed ----------------------------------------------------------------------------------------------------


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_without_a_process_group_there_are_no_ranks() -> None:
    with pytest.raises(StateError, match="call init_process_group before, or pass no ranks at all"):
        TorchRanks()


@pytest.mark.usefixtures("one_process")
def test_a_group_of_one_process_agrees_with_itself() -> None:
    ranks = TorchRanks()
    assert (ranks.rank, ranks.size, ranks.timeout_s) == (0, 1, 60.0)
    assert ranks.agree_reason("probe", "no driver") == "no driver"
    ranks.close()


@pytest.mark.usefixtures("one_process")
def test_a_default_group_without_a_store_is_refused_and_one_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: None)
    with pytest.raises(ConfigError, match="the default group has none: pass a TCPStore"):
        TorchRanks()
    assert TorchRanks(store=HashStore()).size == 1
