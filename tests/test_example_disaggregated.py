"""examples/disaggregated.py: C1 to C6 and S15 under two engines whose answers show every block that went astray.

As a command, over NIXL and over Mooncake, between two processes; and with both engines in this process, over the
connector of docs/connectors.md, where something has to go wrong at a certain point.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import disaggregated
from disagg import launch, prefill
from disagg.blocks import fingerprint
from disagg.channel import Channel, PeerLost
from disagg.decode import DecodeSide
from disagg.prefill import PrefillSide
from tests.cma import CmaConnector
from tests.helpers import PATIENCE_S
from tests.test_connectors_live import usable
from tests.test_example_scheduler import LEAST, Memory, scheduler_of
from tinyllm.life import Engine, Options
from tinyllm.model import Model
from tinyllm.scheduler import Session
from tinyllm.shape import KINDS
from tinyllm.workload import Request, requests
from vmmcache import ConfigError, StaleSegment

REPOSITORY = Path(__file__).resolve().parent.parent
PROMPTS = requests(12, vocabulary=512)


def command(*arguments: str, status: int = 0) -> dict[str, Any]:
    """What the command prints: one JSON object on standard output."""
    ran = subprocess.run(
        # On a machine that is busy the other process starts late.
        [sys.executable, "examples/disaggregated.py", "--timeout", "200", *arguments, "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    (line,) = ran.stdout.splitlines()
    printed: dict[str, Any] = json.loads(line)
    return printed


@pytest.mark.parametrize("connector", usable("nixl", "mooncake"))
def test_two_processes_answer_what_one_does(connector: str) -> None:
    said = command("--connector", connector, "--requests", "12")
    assert (said["schema"], said["connector"], said["equal"], said["requests"]) == (1, connector, True, 12)
    (run,) = said["runs"]
    assert run["tokens_sha256"] == said["tokens_sha256_alone"]
    assert said["reads"] == said["adopted"] == 12
    # Every block that is needed, once, and nothing else. One of all layers of a kind is a piece, of states it is two.
    blocks = [-(-len(request.prompt) // 16) for request in PROMPTS]
    window = [-(-len(request.prompt) // 16) - max(0, len(request.prompt) - 31) // 16 for request in PROMPTS]
    assert said["pieces"] == sum(blocks) + sum(window) + 12 * 2
    assert said["bytes_moved"] == (sum(blocks) * 64 + sum(window) * 128 + 12 * 72) << 10
    # C2, S15: growth appended to what was registered, and some blocks were read out of that.
    small, large = run["prefill"]["report"]["slots"]
    assert all(few <= many for few, many in zip(small, large, strict=True))
    assert run["prefill"]["report"]["parts_from_growth"] > 0
    assert said["partial_cards"] == 1
    assert 0 < said["bytes_from_growth"] < said["bytes_moved"]
    # C4, C5: it slept, all memory was back, and what had been handed over before was refused and read anew.
    (nap,) = run["prefill"]["report"]["naps"]
    assert nap["came_back"] == nap["released"] > 0
    assert (said["cards"], said["reconnects"]) == (3, 1)
    assert said["stale"] >= 1
    assert run["left"] == {"bytes": 0, "registered": 0}
    assert run["prefill"]["status"] == 0


@pytest.mark.parametrize("connector", usable("nixl", "mooncake"))
def test_a_prefill_process_that_dies_is_an_error_of_the_decode_process(connector: str) -> None:
    said = command("--connector", connector, "--requests", "12", "--kill", "prefill", status=1)
    assert said["error"]["type"] == "PeerLost"
    assert said["error"]["message"].startswith("the prefill process is gone")
    assert said["error"]["message"].endswith("it was ended by SIGKILL; 6 of 12 prompts were handed over")
    (run,) = said["runs"]
    # Nothing is left of it, and nothing of what this process had.
    assert (run["prefill"]["status"], run["prefill"]["report"]) == (-9, None)
    assert run["left"] == {"bytes": 0, "registered": 0}


@pytest.mark.parametrize(
    "arguments",
    [["--requests", "11"], ["--repeat", "0"], ["--connector", "pigeon"], ["--kill", "decode"], ["--timeout", "soon"]],
)
def test_wrong_use_ends_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        disaggregated.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


# Both engines in this process ---------------------------------------------------------------------------------------


class Pair:
    """A decode engine in this thread, and a prefill engine for another one."""

    def __init__(self, batch: int = 4) -> None:
        self.model = Model(disaggregated.model_shape())
        # The first one to start measures all memory and leaves most of it to the second one.
        self.there = Engine(self.model, Options("host", first_batch=1, connectors=(CmaConnector(),)))
        self.there.start()
        self.there.make_small()
        self.here = Engine(self.model, Options("host", max_batch=batch, connectors=(CmaConnector(),)))
        self.here.start()
        ours, theirs = socket.socketpair()
        self.ours, self.theirs = Channel(ours, "prefill", PATIENCE_S), Channel(theirs, "decode", PATIENCE_S)
        self.side = DecodeSide(self.here, self.ours, batch=batch, nap_after=1 << 30)
        self.statuses: list[int] = []
        self._thread: threading.Thread | None = None

    def begin(self, queue: list[Request]) -> None:
        """Let the prefill engine work."""

        def run() -> None:
            self.statuses.append(prefill.work(lambda: self.there, self.theirs, queue))

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def ended(self) -> list[int]:
        """Status of the prefill engine's part, which has ended or is about to."""
        if self._thread is not None:
            self._thread.join()
        return self.statuses

    def close(self) -> None:
        self.ours.close()
        self.ended()
        self.theirs.close()
        self.side.reader.forget()
        for engine in (self.here, self.there):
            engine.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "192MiB")
    made = Pair()
    yield made
    made.close()
    torch.set_num_threads(threads)


def test_a_byte_that_arrives_otherwise_is_seen(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise equal fingerprints would say nothing about the blocks."""
    kinds = list(KINDS)

    def then_damaged(*arguments: Any) -> str:
        seen = fingerprint(*arguments)
        views, shape, blocks = arguments
        kind = kinds.pop()
        view = next(iter(views[shape.name(shape.layers.index(kind))].values()))
        view[max(blocks[kind]), -1] += 1
        return seen

    monkeypatch.setattr(prefill, "fingerprint", then_damaged)
    pair.begin(PROMPTS[:3])
    pair.side.run(PROMPTS[:3])
    assert sorted(pair.side.differing) == [0, 1, 2]
    assert pair.side.report()["reads"] == 3


def test_what_fails_in_the_prefill_process_is_said_in_the_decode_process(pair: Pair) -> None:
    """Its cache cannot grow here, because the other one has taken the memory meanwhile."""
    pair.begin(PROMPTS)
    with pytest.raises(PeerLost, match="the prefill process failed: OutOfDeviceMemory: "):
        pair.side.run(PROMPTS)
    assert pair.ended() == [1]


def test_blocks_of_another_epoch_and_blocks_that_are_missing_are_refused(pair: Pair) -> None:
    """C4, with `TransferConnector.version` and `RemoteMemory.require_valid`."""
    (registration,) = pair.there.manager.registrations
    connector = registration.connector
    assert isinstance(connector, CmaConnector)
    side = PrefillSide(pair.there, pair.theirs)
    side._send_card()
    pair.there.scheduler.submit(PROMPTS[:1])
    side._step()
    pair.side._requests = {0: PROMPTS[0]}
    for message in pair.ours.receive(1.0):
        pair.side._hear(message)
    (handoff,) = pair.side._handoffs
    assert handoff.version == connector.version
    (remote,) = (each for each in [pair.side.reader._remote] if each is not None)
    remote.require_valid(handoff.version)
    for stale in (("another", connector.epoch), (handoff.version[0], connector.epoch + 1)):
        with pytest.raises(StaleSegment, match="ask the peer where it is now"):
            remote.require_valid(stale)
    moves = pair.side.reader.blocks.moves
    first = handoff.blocks["full"][0]
    assert {move.there // move.nbytes for move in moves(handoff.blocks, handoff.blocks)} >= {first}
    left = {**handoff.blocks, "window": [-1] * len(handoff.blocks["window"])}
    assert len(list(moves(handoff.blocks, left))) < len(list(moves(handoff.blocks, handoff.blocks)))
    with pytest.raises(ConfigError, match="has left the window there"):
        list(moves(left, handoff.blocks))
    with pytest.raises(ConfigError, match="0 blocks there"):
        list(moves({**handoff.blocks, "full": []}, handoff.blocks))

    ours, theirs = socket.socketpair()
    silent = Channel(ours, "prefill", 0.01)
    with theirs, pytest.raises(PeerLost, match=r"has said nothing for 0\.01 s, and 12 prompts are still due"):
        DecodeSide(pair.here, silent, batch=1, nap_after=1).run(PROMPTS)
    silent.close()


def test_slots_of_a_prompt_are_kept_until_it_was_read() -> None:
    long = [Request(number, PROMPTS[0].prompt[:1] * 112, 20) for number in range(2)]
    here, there = scheduler_of(Memory(), LEAST), scheduler_of(Memory(), LEAST)
    there.submit(long)
    (turn,) = there.schedule()
    there.done(turn, 7)
    there.hold(turn.session)
    # Five blocks have left the window already, and the other two are of use to whoever goes on.
    assert [slot < 0 for slot in there.blocks(turn.session)["window"]] == [True] * 5 + [False] * 2
    # The next one waits, which is no error while somebody will give slots back.
    assert there.schedule() == []
    assert not there.running
    there.let_go(turn.session)
    (following,) = there.schedule()
    assert following.session.request == long[1]

    assert here.schedule() == []
    here.adopt(Session(long[0], [*long[0].prompt, 7], 112, here.slots.allocate(112, 112)))
    (decoding,) = here.schedule()
    assert (decoding.start, decoding.decodes) == (112, True)
    assert (here.counts.admitted, here.counts.adopted) == (0, 1)


# What the two say ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, "other", 5.0)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_messages_come_in_order_however_they_are_cut(ends: tuple[Channel, socket.socket]) -> None:
    channel, there = ends
    there.sendall(b'{"kind": "a"}\n{"ki')
    assert channel.receive(1.0) == [{"kind": "a"}]
    assert channel.receive() == []
    there.sendall(b'nd": "b"}\n{"kind": "c", "of": [1]}\n')
    assert channel.wait_for("c") == {"kind": "c", "of": [1]}
    assert channel.receive() == [{"kind": "b"}]


@pytest.mark.parametrize("ask", [Channel.receive, lambda channel: channel.wait_for("d")])
def test_who_goes_is_heard_to_the_end(ends: tuple[Channel, socket.socket], ask: Callable[[Channel], object]) -> None:
    channel, there = ends
    there.sendall(b'{"kind": "last"}\n{"kind": "cut o')
    there.close()
    channel.send("anything")
    channel.send("and more")
    assert channel.receive() == [{"kind": "last"}]
    with pytest.raises(PeerLost, match="the other process is gone"):
        ask(channel)


def test_environment_of_the_caller_counts() -> None:
    said = {"UCX_TLS": "rc"}
    launch.prepare(said)
    assert said["UCX_TLS"] == "rc"
    assert said["UCX_NET_DEVICES"] == "lo"
