"""Starting the prefill process from the decode process, and what libraries need to hear for one machine. No torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import IO, Final

from disagg.channel import Channel

__all__ = ["Child", "answers_alone", "prepare"]

_SETTINGS: Final = {
    # NIXL over TCP on the loopback device; the system's verbs providers may not fit its own library.
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "lo",
    "UCX_MODULES": "^ib",
    "NIXL_LOG_LEVEL": "FATAL",
    "GLOG_minloglevel": "3",
    "MC_LOG_LEVEL": "ERROR",
    "VMMCACHE_HOST_MEMORY": "192MiB",
}
_GRACE_S: Final = 30.0
"""So long a process that is done may take to end."""
_MOMENT_S: Final = 5.0
"""So long one whose end of the channel is closed may take."""


def prepare(environment: MutableMapping[str, str]) -> None:
    """Say to the libraries what the caller's environment leaves open; before any of them is loaded."""
    for name, value in _SETTINGS.items():
        environment.setdefault(name, value)


@contextmanager
def answers_alone() -> Iterator[IO[str]]:
    """Give standard output to whoever answers, and standard error to libraries in C++ that print as they like."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(before), "w", encoding="utf-8") as answers:
            yield answers
    finally:
        os.dup2(before, 1)
        os.close(before)


class Child:
    """The prefill process, and this end of the channel to it. Whatever happens, `close` ends and reaps it.

    Parameters
    ----------
    command
        Arguments for this Python; ``--channel`` and the descriptor of the other end are added.
    timeout_s
        As for `Channel`.
    """

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process: Final = subprocess.Popen(
                [sys.executable, *command, "--channel", str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        # The child has the only other end: when it is gone, so is that.
        self.channel: Final = Channel(ours, "prefill", timeout_s)

    def end(self) -> str:
        """Say how it has ended; one that is lost and runs all the same is killed."""
        try:
            status = self._process.wait(_MOMENT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "it was still running, and was killed"
        return f"it was ended by {signal.Signals(-status).name}" if status < 0 else f"it exited with {status}"

    def close(self) -> int:
        """Hang up, wait for it, and give its exit status; one that does not end by itself is killed."""
        self.channel.close()
        try:
            return self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
