"""C6: NIXL, Mooncake and the example of the documentation, each between two real processes on this machine.

Bytes are looked at by the target, through its own mapping: that a library says "done" is no proof.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.helpers import PATIENCE_S
from tests.peers import GRANULE, LOOPBACK, ROOT, Peer
from vmmcache import AlignmentError, Card, ConfigError, ConnectorError, LeaseError, StaleSegment, StateError
from vmmcache.connectors import mooncake_plugin, nixl_plugin

LIBRARIES = {"nixl": nixl_plugin, "mooncake": mooncake_plugin}
MISSING = {name: reason for name, module in LIBRARIES.items() if (reason := module._reason()) is not None}
QUARTER = GRANULE // 4


def usable(*names: str) -> list[object]:
    """The connectors as parameters; one whose library is missing is skipped with the reason."""
    return [
        pytest.param(
            name, marks=pytest.mark.skipif(name in MISSING, reason=f"{name}: {' '.join(MISSING.get(name, ()))}")
        )
        for name in names
    ]


@pytest.fixture(scope="module", params=usable("cma", "nixl", "mooncake"))
def processes(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Peer]]:
    with Peer(request.param) as here, Peer(request.param) as there:
        yield here.ready(), there.ready()
        for peer in (here, there):
            peer.close()
            assert peer.end() == 0


@pytest.fixture
def pair(processes: tuple[Peer, Peer]) -> Iterator[tuple[Peer, Peer]]:
    """Two processes, each with two granules of segment 0 and one of segment 1 registered. The first knows the other."""
    for peer in processes:
        peer.commit(2, 1)
        peer.register()
    processes[0].connect(processes[1].card())
    yield processes
    for peer in processes:
        peer.reset()


def test_bytes_travel_both_ways_and_nowhere_else(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    here.fill(0, 0, 2 * GRANULE, 7)
    there.fill(1, 0, GRANULE, 9)
    here.write(((0, 5), (0, GRANULE + 100), 1000), ((0, 0), (0, 0), QUARTER))
    assert there.found(0, 0, 2 * GRANULE) == {7: QUARTER + 1000, 0: 2 * GRANULE - QUARTER - 1000}
    assert there.found(0, GRANULE + 100, 1000) == {7: 1000}
    here.read(((1, 0), (1, QUARTER), QUARTER))
    assert here.found(1, 0, GRANULE) == {9: QUARTER, 0: GRANULE - QUARTER}
    assert here.found(1, 0, QUARTER) == {9: QUARTER}


def test_memory_grows_while_it_is_registered_and_peers_are_told_of_the_new_part(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    here.fill(0, 0, 2 * GRANULE, 7)
    there.commit(3, 4)
    with pytest.raises(ConfigError, match="has registered 4194304 bytes"):
        here.write(((0, 0), (0, 2 * GRANULE), GRANULE))
    part = there.refresh()
    assert Card.from_bytes(part).partial
    assert len(Card.from_bytes(part).extents) == 2
    # A second time, and a whole card after it, change nothing.
    for card in (part, part, there.card()):
        here.connect(card)
        here.write(((0, 0), (0, 2 * GRANULE), GRANULE), ((0, 0), (1, GRANULE), 2 * GRANULE))
        assert there.found(0, 0, 3 * GRANULE) == {0: 2 * GRANULE, 7: GRANULE}
        assert there.found(1, 0, 4 * GRANULE) == {0: 2 * GRANULE, 7: 2 * GRANULE}
        there.fill(0, 0, 3 * GRANULE, 0)
        there.fill(1, 0, 4 * GRANULE, 0)
    assert there.state()[:2] == ("registered", 4)


def test_a_transfer_goes_on_while_the_target_grows(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    for peer in pair:
        peer.commit(12, 1)
        peer.refresh()
    here.connect(there.card())
    here.fill(0, 2 * GRANULE, 10 * GRANULE, 7)
    here.write(((0, 2 * GRANULE), (0, 2 * GRANULE), 10 * GRANULE))
    there.commit(16, 1)
    there.refresh()
    assert there.found(0, 2 * GRANULE, 10 * GRANULE) == {7: 10 * GRANULE}


def test_a_peer_reads_anew_after_sleep_and_finds_the_same_addresses(pair: tuple[Peer, Peer]) -> None:
    """C5. Whoever writes meanwhile, with what it knows of before, is refused and does no harm."""
    here, there = pair
    before = Card.from_bytes(there.card())
    here.fill(0, 0, 2 * GRANULE, 7)
    here.write(((0, 0), (0, 0), GRANULE))
    there.sleep(backup=True)
    assert there.state()[:2] == ("released", 0)
    for _ in range(2):
        with pytest.raises((ConnectorError, StaleSegment)):
            here.write(((0, 0), (0, 0), GRANULE))
    there.wake()
    there.restore()
    with pytest.raises(StaleSegment, match="new card"):
        here.write(((0, 0), (0, GRANULE), GRANULE))
    after = Card.from_bytes(there.card())
    assert after.extents == before.extents
    assert after.version.epoch > before.version.epoch
    here.connect(after)
    here.write(((0, 0), (0, GRANULE), GRANULE))
    assert there.found(0, 0, 2 * GRANULE) == {7: 2 * GRANULE}
    with pytest.raises(StaleSegment, match="latest card"):
        here.connect(before)


def test_a_peer_that_was_told_in_time_never_fails(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    here.fill(0, 0, GRANULE, 7)
    for _ in range(3):
        here.disconnect()
        there.sleep()
        there.wake()
        there.restore()
        here.connect(there.card())
        here.write(((0, 0), (0, 0), GRANULE))
        assert there.found(0, 0, 2 * GRANULE) == {7: GRANULE, 0: GRANULE}


def test_the_side_that_asks_may_sleep_too_and_keeps_its_peers(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    here.sleep()
    with pytest.raises(StateError, match="released"):
        here.write(((0, 0), (0, 0), GRANULE))
    here.wake()
    here.restore()
    here.fill(0, 0, GRANULE, 8)
    here.write(((0, 0), (0, 0), GRANULE))
    assert there.found(0, 0, GRANULE) == {8: GRANULE}


def test_a_new_registration_after_a_shrink_is_another_version(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    there.register_anew(1, 1)
    if there.name != "cma":  # which has no book on the other side, where the cut granule is still in its allocation
        with pytest.raises((ConnectorError, StaleSegment)):
            here.write(((0, 0), (0, GRANULE), GRANULE))
    here.connect(there.card())
    here.fill(0, 0, GRANULE, 7)
    here.write(((0, 0), (0, 0), GRANULE))
    assert there.found(0, 0, GRANULE) == {7: GRANULE}


# What is refused before the library hears of it -----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["here", "there"])
def test_a_hole_is_refused_before_the_library_could_crash_on_it(pair: tuple[Peer, Peer], end: str) -> None:
    here, there = pair
    peer, segment_start = (here, here.at(0, 0)) if end == "here" else (there, there.at(0, 0))
    assert peer.found(0, 0, 2 * GRANULE) == {0: 2 * GRANULE}
    inside, other = segment_start + 2 * GRANULE, (there if end == "here" else here).at(1, 0)
    for address, nbytes in ((inside, 1), (inside - 1, 2), (inside + GRANULE, GRANULE), (segment_start - 1, 1)):
        pair_of_addresses = (address, other) if end == "here" else (other, address)
        with pytest.raises(ConfigError, match=r"has not registered all of"):
            here.write_to_address(*pair_of_addresses, nbytes)
    here.write(((0, 0), (0, 0), GRANULE))  # both sides live, and the connection does


def test_a_transfer_over_two_registrations_is_refused(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    there.commit(4, 1)
    here.connect(there.refresh())
    with pytest.raises(AlignmentError, match="two registrations of 'kv_cache'"):
        here.write(((0, 0), (0, GRANULE), 2 * GRANULE))
    with pytest.raises(AlignmentError, match="no transfer may span two"):
        here.write_to_address(here.at(0, 0), there.at(0, GRANULE), 2 * GRANULE)
    here.write(((0, 0), (0, GRANULE), GRANULE), ((0, 0), (0, 2 * GRANULE), GRANULE))


def test_blocks_that_would_lie_in_two_registrations_are_refused(pair: tuple[Peer, Peer]) -> None:
    _, there = pair
    there.reset()
    there.commit(1.5, 1)
    there.commit(3, 1.5)
    with pytest.raises(AlignmentError, match="a block of"):
        there.register(3 * GRANULE // 2)
    there.defragment()
    there.register(3 * GRANULE // 2)
    assert there.parts() == [(0, 0, 3 * GRANULE), (1, 0, 3 * GRANULE // 2)]


def test_an_overlap_is_refused_and_the_first_registration_works_on(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    with pytest.raises(ConfigError, match="already"):
        there.register()
    here.fill(0, 0, GRANULE, 7)
    here.write(((0, 0), (0, 0), GRANULE))
    assert there.found(0, 0, GRANULE) == {7: GRANULE}


def test_cards_that_do_not_fit_are_refused(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    card = Card.from_bytes(there.card())
    fields = json.loads(there.card())
    with pytest.raises(ConfigError, match="a card of"):
        here.connect(here.card())
    with pytest.raises(ConfigError, match="a card of other"):
        here.connect(json.dumps(fields | {"connector": "other"}).encode())
    with pytest.raises(ConfigError, match="not a card"):
        here.connect(b"garbage")
    here.disconnect()
    here.disconnect()
    there.commit(3, 1)
    with pytest.raises(StateError, match="adds to nothing"):
        here.connect(there.refresh())
    # One who was started again under its old name is somebody else, whatever its epoch.
    here.connect(there.card())
    assert card.agent in here.connect(there.card())


def test_a_callback_that_raises_keeps_the_memory_and_the_connection(pair: tuple[Peer, Peer]) -> None:
    here, there = pair
    there.refuse_to_be_quiet(True)
    with pytest.raises(LeaseError, match="requests are running"):
        there.sleep()
    here.fill(0, 0, GRANULE, 7)
    here.write(((0, 0), (0, 0), GRANULE))
    assert there.found(0, 0, GRANULE) == {7: GRANULE}
    there.refuse_to_be_quiet(False)
    there.sleep()


# What only some can ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=usable("nixl", "mooncake"))
def fresh(request: pytest.FixtureRequest) -> Iterator[tuple[str, Peer, Peer]]:
    """A pair that does not have to live."""
    with Peer(request.param, patience_s=0.3) as here, Peer(request.param) as there:
        for peer in (here.ready(), there.ready()):
            peer.commit(16, 1)
            peer.register()
        here.connect(there.card())
        yield request.param, here, there


def test_a_peer_that_dies_in_a_transfer(fresh: tuple[str, Peer, Peer]) -> None:
    """It stands still first, so that the transfer is certainly on its way. Memory stays until that has ended."""
    _, here, there = fresh
    here.write(((0, 0), (0, 0), 100))
    there.process.send_signal(signal.SIGSTOP)
    assert "running" in here.begin_write(16 * GRANULE)
    assert not here.finished()
    with pytest.raises(LeaseError, match=r"has not ended within 0\.3 s, and nothing was deregistered"):
        here.sleep()
    assert here.state() == ("registered", 2, 0)
    there.kill()
    with pytest.raises(ConnectorError):
        here.finish()
    with pytest.raises(StaleSegment, match="a transfer failed"):
        here.write(((0, 0), (0, 0), GRANULE))
    here.sleep()
    here.wake()
    here.restore()
    assert here.state() == ("registered", 2, 1)
    here.close()
    assert here.end() == 0


@pytest.mark.skipif("nixl" in MISSING, reason=f"nixl: {MISSING.get('nixl')}")
def test_nixl_lets_go_of_a_peer_that_stands_still_when_it_is_disconnected() -> None:
    with Peer("nixl", patience_s=0.3) as here, Peer("nixl") as there:
        for peer in (here.ready(), there.ready()):
            peer.commit(16, 1)
            peer.register()
        here.connect(there.card())
        there.process.send_signal(signal.SIGSTOP)
        here.begin_write(16 * GRANULE)
        with pytest.raises(StateError, match="or disconnect the peer"):
            here.release()
        here.disconnect()
        with pytest.raises(ConnectorError):
            here.finish()
        here.sleep()
        here.wake()
        here.restore()
        there.process.send_signal(signal.SIGCONT)
        here.connect(there.card())
        here.write(((0, 0), (0, 0), GRANULE))


def test_a_release_waits_for_what_is_on_its_way(fresh: tuple[str, Peer, Peer]) -> None:
    _, here, there = fresh
    here.be_patient()
    here.fill(0, 0, 16 * GRANULE, 7)
    here.begin_write(16 * GRANULE)
    here.release()
    assert here.finished()
    assert there.found(0, 0, 16 * GRANULE) == {7: 16 * GRANULE}


@pytest.mark.skipif("nixl" in MISSING, reason=f"nixl: {MISSING.get('nixl')}")
def test_nixl_tells_the_peer_when_the_bytes_are_there() -> None:
    with Peer("nixl") as here, Peer("nixl", agent="named") as there:
        for peer in (here.ready(), there.ready()):
            peer.commit(1, 1)
            peer.register()
        assert "named" in here.connect(there.card())
        here.write(((0, 0), (0, 0), GRANULE), message=b"block 7")
        assert there.messages() == [b"block 7"]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_two_libraries_on_one_memory() -> None:
    """Each with its own leases; both are out of the way when the memory goes."""
    with Peer("nixl") as peer:
        peer.ready()
        peer.commit(2, 1)
        peer.register()
        peer.register_elsewhere("mooncake")
        assert peer.counted() == [2, 2]
        with pytest.raises(LeaseError) as caught:
            peer.sleep(revoke=False)
        assert caught.value.owners == ("nixl", "mooncake")
        peer.sleep()
        assert peer.counted() == [0, 0]
        peer.close()
        assert peer.end() == 0


# What the bare library does -------------------------------------------------------------------------------------------

BARE = """
import base64, json, sys
from {package}._api import nixl_agent, nixl_agent_config
from vmmcache import ExtensibleTensor

def agent(name):
    made = nixl_agent(name, nixl_agent_config(backends=[]))
    made.create_backend("UCX", {{"engine_config": "RCACHE_ENABLE=n"}})
    return made

tensor = ExtensibleTensor(32 << 20)
tensor.commit(4 << 20)
me = agent(sys.argv[1])
# Twice as much as there is, and NIXL takes it.
me.register_memory([(tensor.base_address, 8 << 20, 0, "")], "DRAM")
if sys.argv[1] == "target":
    print(json.dumps([tensor.base_address, base64.b64encode(me.get_agent_metadata()).decode()]), flush=True)
    sys.stdin.read()
else:
    address, metadata = json.loads(sys.argv[2])
    me.add_remote_agent(base64.b64decode(metadata))
    here = me.get_xfer_descs([(tensor.base_address, 2 << 20, 0)], "DRAM")
    there = me.get_xfer_descs([(address + (5 << 20), 2 << 20, 0)], "DRAM")
    handle = me.initialize_xfer("WRITE", here, there, "target")
    state = me.transfer(handle)
    while state == "PROC":
        state = me.check_xfer_state(handle)
    print(state)
"""


@pytest.mark.skipif("nixl" in MISSING, reason=f"nixl: {MISSING.get('nixl')}")
def test_the_bare_library_ends_the_process_that_a_peer_writes_a_hole_of() -> None:
    """Why `test_a_hole_is_refused_...` is worth having: registering a hole succeeds, and a write to it is a crash."""
    package = next(name for name in nixl_plugin.MODULES if importlib.util.find_spec(name))
    command = [sys.executable, "-c", BARE.format(package=package)]
    environment = {**os.environ, **LOOPBACK, "PYTHONFAULTHANDLER": ""}
    target = subprocess.Popen(
        [*command, "target"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
        text=True,
    )
    with target:
        assert target.stdout is not None
        told = next(line for line in target.stdout if line.startswith("["))
        address, metadata = json.loads(told)
        assert address
        assert base64.b64decode(metadata)
        asking = subprocess.run(
            [*command, "asking", told],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=ROOT,
            timeout=PATIENCE_S,
        )
        assert "DONE" not in asking.stdout
        assert "DISCONNECT" in asking.stderr or "ERR" in asking.stdout
        assert target.stdin is not None
        target.stdin.close()
        # By the copy itself, or by the connection: in either case the peer has broken the target's service.
        assert target.wait(PATIENCE_S) in (-signal.SIGSEGV, 0)
