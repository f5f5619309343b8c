"""A process that has memory and a connector, and does what a test tells it to: transfers need two real processes.

The test holds a `Peer`; each of its calls is carried out by a `Side` in the child, and gives what that gives, or raises
what that raises. No torch in the child: memory is looked at by its addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.helpers import PATIENCE_S
from vmmcache import (
    Connector,
    ExtensibleTensor,
    Registration,
    RemoteMemory,
    Transfer,
    TransferConnector,
    open_connector,
)
from vmmcache.errors import VmmCacheError

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"

LOOPBACK = {
    # NIXL over TCP on this machine only, and without the system's verbs providers, which may not fit its own library.
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "lo",
    "UCX_MODULES": "^ib",
    "NIXL_LOG_LEVEL": "FATAL",
    "GLOG_minloglevel": "3",
    "MC_LOG_LEVEL": "ERROR",
}
Copies = Sequence[tuple[tuple[int, int], tuple[int, int], int]]
GRANULE = 2 << 20
SEGMENTS = 2


class Side:
    """The child's part. Segments are 16 granules each."""

    def __init__(self, connector: str, options: dict[str, Any]) -> None:
        self.tensor = ExtensibleTensor(SEGMENTS * 16 * GRANULE, segments=SEGMENTS)
        self.connector = self._open(connector, options)
        self.others: list[Connector] = []
        self.remotes: dict[str, RemoteMemory] = {}
        self.registration: Registration | None = None
        self.running: Transfer | None = None

    def reset(self) -> None:
        """As new, but for the connector."""
        self.connector.on_quiesce = None
        for agent in self.connector.peers:
            self.connector.disconnect(agent)
        if self.registration is not None:
            self.registration.close()
        self.tensor.close()
        self.tensor = ExtensibleTensor(SEGMENTS * 16 * GRANULE, segments=SEGMENTS)
        self.remotes, self.registration, self.running = {}, None, None

    def _open(self, name: str, options: dict[str, Any]) -> TransferConnector:
        opened = open_connector(name, **options)
        assert isinstance(opened, TransferConnector)
        return opened

    # Memory ---------------------------------------------------------------------------------------------------------

    def commit(self, *granules: float) -> None:
        self.tensor.commit([int(each * GRANULE) for each in granules])

    def defragment(self) -> None:
        self.tensor.commit(self.tensor.committed, defragment=True, keep=True)

    def sleep(self, backup: bool = False, revoke: bool = True) -> None:
        self.tensor.release_physical(backup=backup, revoke=revoke)

    def wake(self) -> None:
        self.tensor.restore()

    def at(self, segment: int, offset: int) -> int:
        return self.tensor.base_address + self.tensor.segment_offsets[segment] + offset

    def fill(self, segment: int, offset: int, nbytes: int, byte: int) -> None:
        ctypes.memset(self.at(segment, offset), byte, nbytes)

    def found(self, segment: int, offset: int, nbytes: int) -> dict[int, int]:
        """How many of each byte there are, through this process's own mapping."""
        data, counts = ctypes.string_at(self.at(segment, offset), nbytes), {}
        while data:
            counts[data[0]] = data.count(data[0])
            data = data.replace(data[:1], b"")
        return counts

    # Registering ----------------------------------------------------------------------------------------------------

    def register(self, strides: int | None = None) -> str:
        self.registration = Registration(self.tensor, self.connector, strides=strides)
        return repr(self.registration)

    def register_anew(self, *granules: float) -> str:
        """Other sizes, smaller ones too."""
        assert self.registration is not None
        self.registration.close()
        self.commit(*granules)
        return self.register()

    def register_elsewhere(self, name: str) -> None:
        """The same memory with another connector too."""
        other = open_connector(name)
        self.others.append(other)
        Registration(self.tensor, other)

    def counted(self) -> list[int]:
        return [len(each.registered) for each in (self.connector, *self.others)]

    def parts(self) -> list[tuple[int, int, int]]:
        assert self.registration is not None
        return [(each.segment_index, each.logical_offset, each.nbytes) for each in self.registration.parts]

    def state(self) -> tuple[str, int, int]:
        """Of the registration; how much is registered; and the connector's epoch."""
        assert self.registration is not None
        return self.registration.state, len(self.connector.registered), self.connector.epoch

    def refresh(self) -> bytes:
        """The partial card of what growth has appended."""
        assert self.registration is not None
        fresh = self.registration.refresh()
        return self.connector.card(self.registration, fresh).to_bytes()

    def card(self) -> bytes:
        assert self.registration is not None
        return self.connector.card(self.registration).to_bytes()

    def release(self) -> None:
        assert self.registration is not None
        self.registration.release()

    def restore(self) -> None:
        assert self.registration is not None
        self.registration.restore()

    def close(self) -> None:
        if self.registration is not None:
            self.registration.close()
        self.connector.close()
        for other in self.others:
            other.unregister(other.registered)
            other.close()
        self.tensor.close(revoke=True)

    def be_patient(self) -> None:
        """For tests in which nothing stands still: no clock decides."""
        vars(self.connector)["patience_s"] = PATIENCE_S

    def refuse_to_be_quiet(self, refusing: bool) -> None:
        """The engine's callback raises, or not."""

        def busy() -> None:
            raise TimeoutError("requests are running")

        self.connector.on_quiesce = busy if refusing else None

    # Transfers ------------------------------------------------------------------------------------------------------

    def connect(self, card: bytes, name: str = "peer") -> str:
        self.remotes[name] = self.connector.connect(card)
        return repr(self.remotes[name])

    def disconnect(self, name: str = "peer") -> None:
        self.connector.disconnect(self.remotes[name].agent)

    def write(self, *copies: tuple[tuple[int, int], tuple[int, int], int], message: bytes = b"") -> None:
        """Copies are (segment, offset) here, (segment, offset) there, bytes."""
        self._begin(self.connector.write, copies, message).wait(PATIENCE_S)

    def read(self, *copies: tuple[tuple[int, int], tuple[int, int], int]) -> None:
        self._begin(self.connector.read, copies, b"").wait(PATIENCE_S)

    def _begin(self, operation: Callable[..., Transfer], copies: Copies, message: bytes) -> Transfer:
        assert self.registration is not None
        remote = self.remotes["peer"]
        placed = [
            (self.registration.address(segment, offset, nbytes), remote.address(far, place, nbytes), nbytes)
            for (segment, offset), (far, place), nbytes in copies
        ]
        return operation(remote, placed, message)

    def write_to_address(self, local: int, address: int, nbytes: int) -> None:
        self.connector.write(self.remotes["peer"], [(local, address, nbytes)]).wait(PATIENCE_S)

    def begin_write(self, nbytes: int) -> str:
        self.running = self._begin(self.connector.write, [((0, 0), (0, 0), nbytes)], b"")
        return repr(self.running)

    def finish(self) -> None:
        assert self.running is not None
        self.running.wait(PATIENCE_S)

    def finished(self) -> bool:
        assert self.running is not None
        return self.running.done

    def messages(self) -> list[bytes]:
        """Waits for the first one."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := self.connector.messages():  # type: ignore[attr-defined]  # NIXL only
                return [message for each in found.values() for message in each]
        return []


class Peer:
    """The test's end. What the child raises is raised here."""

    def __init__(self, connector: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.peers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **LOOPBACK, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *filter(None, sys.path)])},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.name = connector
        self._to: IO[bytes] = self.process.stdin
        self._from: IO[bytes] = self.process.stdout
        self._post((connector, options))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._post((name, arguments, keywords))
            return self.answer()

        return call

    def ready(self) -> Peer:
        """Wait until it has opened its connector; so that two can start at the same time."""
        self.answer()
        return self

    def _post(self, what: object) -> None:
        pickle.dump(what, self._to)
        self._to.flush()

    def answer(self) -> Any:
        try:
            good, value = pickle.load(self._from)
        except EOFError:
            status = self.process.wait(PATIENCE_S)
            raise ProcessLookupError(f"the peer ended with {status}") from None
        if not good:
            raise value
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever it is doing, it goes."""
        self.kill()
        self._hang_up()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def end(self) -> int:
        """Ask nothing more, and see how it ends by itself."""
        self._hang_up()
        return self.process.wait(PATIENCE_S)

    def _hang_up(self) -> None:
        self._from.close()
        with contextlib.suppress(BrokenPipeError):  # there was a question that nobody will read
            self._to.close()


def serve() -> None:
    """Until nobody asks any more. What libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        questions = sys.stdin.buffer
        side: Side | None = None
        while True:
            try:
                signal.alarm(0)
                question = pickle.load(questions)  # until the other end closes, or is gone
                signal.alarm(110)  # what hangs in a library ends too
            except EOFError:
                break
            try:
                if side is None:
                    side = Side(*question)
                    answer = None
                else:
                    name, arguments, keywords = question
                    answer = getattr(side, name)(*arguments, **keywords)
            except (VmmCacheError, TimeoutError) as error:
                pickle.dump((False, error), answers)
            else:
                pickle.dump((True, answer), answers)
            answers.flush()


if __name__ == "__main__":
    serve()
