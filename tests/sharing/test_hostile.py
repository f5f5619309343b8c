"""Whatever comes through the socket: a typed error, the connection dropped, nothing left open (C7)."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S, Accounts, accounts
from tests.sharing.support import contents, descriptors, event, eventually
from tests.sharing.test_wire import frames
from vmmcache import ExtensibleTensor, SharedTensor, SharingError, TensorServer, VmmCacheError
from vmmcache.sharing import _wire as wire
from vmmcache.sharing._releases import Request

G = FINE
WELCOME = wire.Welcome(1, "cpu", G, 16 * G, (8 * G, 8 * G))
Speak = Callable[[socket.socket], None]


def say(sock: socket.socket, *frames_: wire.Frame, fds: Sequence[int] = (), data: bytes = b"") -> None:
    """Send frames, with descriptors at the first byte."""
    everything = b"".join(wire.pack(frame, min(len(fds), wire.BATCH)) for frame in frames_) + data
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([everything], rights)


def memory(nbytes: int = G, *, sealed: bool = True) -> int:
    """A memory file, as an exporter makes it."""
    import fcntl

    fd = os.memfd_create("theirs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


class FakeServer:
    """Listens, and treats whoever connects in a way of its own."""

    def __init__(self, path: Path, speak: Speak) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(str(path))
        self._sock.listen()
        self._speak = speak
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connected, _ = self._sock.accept()
        with connected:
            connected.settimeout(PATIENCE_S)
            try:
                self._speak(connected)
                while connected.recv(4096):
                    pass
            except OSError:
                return  # the importer has hung up on us, as it should

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        self._sock.close()


def meet(path: Path, speak: Speak, timeout_s: float) -> tuple[VmmCacheError, str]:
    """What an importer makes of a server: how it ended, and where: while connecting, or afterwards."""
    before, driver = descriptors(), FineHostDriver()
    server = FakeServer(path, speak)
    try:
        shared = SharedTensor.connect(path, driver, background=False, timeout_s=timeout_s)
    except VmmCacheError as error:
        found = error, "connecting"
    else:
        try:
            while True:
                assert shared.poll(PATIENCE_S)
        except VmmCacheError as error:
            found = error, "following"
        assert shared.connection == "lost"
        shared.close()
    server.end()
    path.unlink()
    assert accounts(driver) == Accounts()
    assert descriptors() == before
    return found


def mapped(*entries: wire.Entry) -> wire.Map:
    return wire.Map(1, entries)


def entry(number: int = 1, offset: int = 0, nbytes: int = G, fabric: bytes = b"") -> wire.Entry:
    return wire.Entry(number, offset, nbytes, fabric)


def with_memory(*frames_: wire.Frame, count: int = 1, make: Callable[[], int] = memory) -> Speak:
    """The handshake, then the first frame with descriptors, then the others, each when the one before is answered."""

    def speak(sock: socket.socket) -> None:
        fds = [make() for _ in range(count)]
        try:
            say(sock, WELCOME)
            sock.recv(4096)
            for place, frame in enumerate(frames_):
                say(sock, frame, fds=[] if place else fds)
                if not sock.recv(4096):
                    return
        finally:
            for fd in fds:
                os.close(fd)

    return speak


def pipe() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


STATE = wire.State(2, "committed", 0, (G, 0))

CASES: dict[str, tuple[Speak, str]] = {
    "silence": (lambda sock: None, "says nothing for too long"),
    "the end": (lambda sock: sock.shutdown(socket.SHUT_RDWR), r"has ended the connection|is gone"),
    "another protocol": (lambda sock: say(sock, data=b"HTTP/1.1 400 Bad Request\r\n"), "sent b'HTTP'"),
    "half a head": (lambda sock: say(sock, data=b"VMM"), "says nothing for too long"),
    "half a frame": (lambda sock: say(sock, data=wire.pack(WELCOME)[:20]), "says nothing for too long"),
    "a huge frame": (lambda sock: say(sock, data=wire.HEAD.pack(wire.MAGIC, 2, 0, 0, 2**32 - 1)), "announced 42949"),
    "another version": (lambda sock: say(sock, WELCOME._replace(version=9)), "speaks version 9, and we speak 1"),
    "no granule": (lambda sock: say(sock, WELCOME._replace(granule=0)), "maps in granules of 0 bytes"),
    "another granule": (lambda sock: say(sock, WELCOME._replace(granule=4096)), "in granules of 4096 bytes, and host"),
    "no segments": (lambda sock: say(sock, WELCOME._replace(segments=())), "segments that cannot be"),
    "wrong sizes": (lambda sock: say(sock, WELCOME._replace(capacity=G)), "segments that cannot be"),
    "an empty segment": (lambda sock: say(sock, WELCOME._replace(segments=(0, 16 * G))), "segments that cannot be"),
    "more than there is": (
        lambda sock: say(sock, WELCOME._replace(capacity=2**63, segments=(2**63,))),
        "segments that cannot be",
    ),
    "more than can be reserved": (
        lambda sock: say(sock, WELCOME._replace(capacity=2**60, segments=(2**60,))),
        "ENOMEM",
    ),
    "not a welcome": (lambda sock: say(sock, wire.Ack(1)), "sent Ack with 0 descriptors where that makes no sense"),
    "a welcome with a gift": (
        with_memory(WELCOME, WELCOME),
        "sent Welcome with 1 descriptors where that makes no sense",
    ),
    "two welcomes": (with_memory(WELCOME, count=0), "sent Welcome with 0 descriptors"),
    "a refusal": (lambda sock: say(sock, wire.Refused(0, "not today")), "refuses us: not today"),
    "a refusal later": (with_memory(wire.Refused(0, "enough"), count=0), "has ended the connection: enough"),
    "no descriptor": (with_memory(mapped(entry()), count=0), "sent no descriptor for allocation 1"),
    "too many descriptors": (with_memory(mapped(entry()), count=2), "1 descriptors that belong to no allocation"),
    "far too many": (with_memory(mapped(entry()), count=17), "more descriptors than there is room for"),
    "a pipe": (with_memory(mapped(entry()), make=pipe), "no memory file that keeps its size"),
    "a file that may shrink": (
        with_memory(mapped(entry()), make=lambda: memory(sealed=False)),
        "no memory file that keeps its size",
    ),
    "a smaller file": (with_memory(mapped(entry(nbytes=2 * G))), f"holds {G} bytes"),
    "a fabric handle": (with_memory(mapped(entry(fabric=b"x" * 64)), count=0), "fabric"),
    "beside the granule": (with_memory(mapped(entry(offset=1))), r"wants 65536 bytes at 1 of"),
    "no bytes": (with_memory(mapped(entry(nbytes=0))), "wants 0 bytes"),
    "past the end": (with_memory(mapped(entry(offset=16 * G))), "wants 65536 bytes at 1048576 of 1048576"),
    "far past the end": (with_memory(mapped(entry(offset=2**64 - G))), "wants 65536 bytes"),
    "twice the same place": (
        with_memory(mapped(entry(1), entry(2)), count=2),
        "wants 65536 bytes at 0, where something is mapped",
    ),
    "twice the same number": (with_memory(mapped(entry(1), entry(1, G)), count=2), "sent allocation 1 twice"),
    "what is not there": (with_memory(wire.Unmap(1, False, (5,)), count=0), "wants allocation 5 unmapped"),
    "committed and not sent": (with_memory(STATE, count=0), "65536 bytes at 0 are committed, and has not sent them"),
    "more than a segment": (with_memory(STATE._replace(committed=(9 * G, 0)), count=0), "are committed"),
    "too few segments": (with_memory(STATE._replace(committed=(0,)), count=0), "are committed"),
    "an unknown event": (with_memory(STATE._replace(event="exploded"), count=0), "unknown event 'exploded'"),
    "a state with a gift": (with_memory(STATE), "sent State with 1 descriptors"),
    "the same place later": (
        with_memory(mapped(entry()), STATE, wire.Map(3, (entry(2),))),
        "sent no descriptor|where something is mapped",
    ),
    "mapped, then gone": (with_memory(mapped(entry()), STATE), r"ended the connection|is gone|nothing for too long"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_importer_survives_its_exporter(tmp_path: Path, case: str) -> None:
    speak, problem = CASES[case]
    if case == "mapped, then gone":
        polite = speak

        def speak(sock: socket.socket) -> None:
            polite(sock)
            sock.shutdown(socket.SHUT_RDWR)

    # Only who waits in vain is not to wait long.
    timeout_s = 0.5 if problem == "says nothing for too long" else PATIENCE_S
    with pytest.raises(VmmCacheError, match=problem):
        raise meet(tmp_path / "kv.sock", speak, timeout_s)[0]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorServer]:
    tensor = ExtensibleTensor(16 * G, FineHostDriver(), segments=2)
    tensor.commit(G)
    path = tmp_path_factory.mktemp("attacked") / "kv.sock"
    with tensor, TensorServer(tensor, path, timeout_s=PATIENCE_S) as server:
        yield server


def attack(server: TensorServer, speak: Speak) -> bytes:
    """What a server says to an importer of that kind, until it hangs up."""
    before, said = descriptors(), b""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(server.path)
        try:
            speak(sock)
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(65536):  # descriptors that come along are not taken
                said += data
        except OSError:
            said += b""  # it has hung up already
    eventually(lambda: server.importers == ())
    eventually(lambda: descriptors() == before)
    return said


HELLO = wire.Hello(1, 1, 1)


@pytest.mark.parametrize(
    "speak",
    [
        pytest.param(lambda sock: None, id="nothing"),
        pytest.param(lambda sock: say(sock, data=b"GET / HTTP/1.1\r\n\r\n"), id="another protocol"),
        pytest.param(lambda sock: say(sock, data=wire.pack(HELLO)[:7]), id="half a frame"),
        pytest.param(lambda sock: say(sock, wire.Ack(1)), id="no hello"),
        pytest.param(lambda sock: say(sock, HELLO, HELLO), id="two hellos"),
        pytest.param(lambda sock: say(sock, HELLO, wire.Ack(77)), id="an answer to no question"),
        pytest.param(lambda sock: say(sock, HELLO, wire.Refused(0, "so long")), id="a farewell"),
        pytest.param(lambda sock: say(sock, HELLO, wire.Map(1, ())), id="an exporter's frame"),
        pytest.param(lambda sock: say(sock, HELLO, wire.Ack(1), wire.Ack(2), wire.Ack(3)), id="more answers"),
    ],
)
def test_an_exporter_survives_its_importer(attacked: TensorServer, speak: Speak) -> None:
    attack(attacked, speak)
    with SharedTensor.connect(attacked.path, FineHostDriver()) as shared:
        assert contents(shared) == contents(attacked.tensor)
    eventually(lambda: attacked.importers == ())
    attacked.tensor.release_physical()
    attacked.tensor.restore()


def test_descriptors_that_an_importer_sends_are_closed(attacked: TensorServer) -> None:
    given = [memory() for _ in range(3)]
    assert attack(attacked, lambda sock: say(sock, HELLO, fds=given)) == b"", "not a word to such a one"
    for fd in given:
        os.close(fd)


def test_another_version_is_told_which_there_is(attacked: TensorServer) -> None:
    said = attack(attacked, lambda sock: say(sock, wire.Hello(7, 9, 1)))
    kind, _, nbytes = wire.parse_head(said[: wire.HEAD.size], "server")
    frame = wire.unpack(kind, said[wire.HEAD.size :], "server")
    assert frame == wire.Refused(0, "it speaks versions 7 to 9, and we speak 1")
    assert nbytes == len(said) - wire.HEAD.size


def test_one_that_does_not_read_delays_nobody(attacked: TensorServer) -> None:
    """C7: the exporter's operations go on, and other importers follow."""
    tensor = attacked.tensor
    with socket.socket(socket.AF_UNIX) as deaf, SharedTensor.connect(attacked.path, FineHostDriver()) as shared:
        deaf.connect(attacked.path)
        say(deaf, HELLO)
        # When it was sent what there is, which it does not read either: what comes later is not leased for it.
        eventually(lambda: len(deaf.recv(4096, socket.MSG_PEEK)) > len(wire.pack(WELCOME)))
        tensor.commit(2 * G)
        eventually(lambda: shared.committed == tensor.committed)
        tensor.commit(G, revoke=True)  # of what it was never sent
        event(shared, "about_to_release")
        assert len(attacked.importers) == 2
        (session,) = (each for each in attacked._importers.now() if each.held == ())
        real = session.ask

        def late(request: Request) -> Request:
            vars(request)["wait"] = lambda timeout_s: False  # of this one the time is over at once
            return real(request)

        vars(session)["ask"] = late
        tensor.commit(0, revoke=True)
        eventually(lambda: len(attacked.importers) == 1)
        tensor.commit(G)
        eventually(lambda: shared.committed == tensor.committed)


pieces = st.one_of(
    st.binary(max_size=60),
    frames.map(wire.pack),
    st.builds(lambda frame, count: wire.pack(frame, count), frames, st.integers(1, 3)),
    st.just(wire.pack(HELLO)),
    st.builds(lambda number: wire.pack(wire.Ack(number)), st.integers(1, 4)),
    st.builds(lambda number: wire.pack(wire.Refused(number, "no")), st.integers(0, 4)),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(pieces, st.integers(0, 3)), min_size=1, max_size=5))
def test_any_bytes_of_an_importer(attacked: TensorServer, script: list[tuple[bytes, int]]) -> None:
    def speak(sock: socket.socket) -> None:
        for data, count in script:
            fds = [memory() for _ in range(count)]
            try:
                say(sock, fds=fds if data else [], data=data)
            finally:
                for fd in fds:
                    os.close(fd)

    attack(attacked, speak)


granules = st.integers(0, 3).map(lambda count: count * G)
numbers = st.integers(1, 3)
plausible = st.one_of(
    st.builds(
        wire.Map,
        numbers,
        st.lists(st.builds(wire.Entry, numbers, granules, st.just(G), st.just(b"")), max_size=3).map(tuple),
    ),
    st.builds(wire.Unmap, numbers, st.booleans(), st.lists(numbers, max_size=2).map(tuple)),
    st.builds(
        wire.State, numbers, st.sampled_from(["committed", "asleep", "closed"]), numbers, st.tuples(granules, granules)
    ),
)


@settings(max_examples=60)
@given(st.lists(st.one_of(plausible.map(wire.pack), pieces), max_size=6), st.integers(0, 3), st.booleans())
def test_any_bytes_of_an_exporter(
    tmp_path_factory: pytest.TempPathFactory, script: list[bytes], count: int, welcome: bool
) -> None:
    """Frames that could be true among those that cannot: in the end, nothing is mapped and nothing open."""
    path = tmp_path_factory.getbasetemp() / "any.sock"

    def speak(sock: socket.socket) -> None:
        if welcome:
            say(sock, WELCOME)
        for data in script:
            kind_of_map = data[: wire.HEAD.size] and data[4:5] == bytes([wire.FRAMES.index(wire.Map) + 1])
            fds = [memory() for _ in range(count if kind_of_map else 0)]
            if fds:
                data = data[:5] + bytes([count]) + data[6:]
            try:
                say(sock, fds=fds if data else [], data=data)
            finally:
                for fd in fds:
                    os.close(fd)
        sock.shutdown(socket.SHUT_WR)

    before, driver = descriptors(), FineHostDriver()
    server = FakeServer(path, speak)
    try:
        with SharedTensor.connect(path, driver, background=False, timeout_s=0.3) as shared:
            while shared.connection == "connected":
                shared.poll(0.3)
    except VmmCacheError as error:
        assert isinstance(error, SharingError) or str(error)
    server.end()
    path.unlink()
    assert accounts(driver) == Accounts()
    assert descriptors() == before
