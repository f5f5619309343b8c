"""What the two processes say to each other: JSON, one object a line, over a socket. Not one byte of a cache.

A peer that is gone is seen by `Channel.receive`, after whatever it said last.
"""

from __future__ import annotations

import json
import socket
from typing import Any, Final

__all__ = ["Channel", "Message", "PeerLost"]

Message = dict[str, Any]

_CHUNK: Final = 1 << 16


class PeerLost(RuntimeError):
    """The other process ended, or failed, while it was needed."""


class Channel:
    """One end of the channel. For one thread.

    Parameters
    ----------
    end
        A connected stream socket; closed with the channel.
    peer
        What the other process is called in errors.
    timeout_s
        Longest that it may stay silent while it is waited for.
    """

    def __init__(self, end: socket.socket, peer: str, timeout_s: float) -> None:
        self.peer: Final = peer
        self.timeout_s: Final = timeout_s
        self._end: Final = end
        self._bytes = b""
        self._inbox: list[Message] = []
        self._ended = False

    def send(self, kind: str, **fields: object) -> None:
        """Say something. Whether anybody is there to hear it shows in `receive`."""
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        try:
            self._end.settimeout(self.timeout_s)
            self._end.sendall(line)
        except OSError:
            # It may have said why before it went.
            self._take(self.timeout_s)
            self._ended = True

    def receive(self, wait_s: float = 0.0) -> list[Message]:
        """Give what was said, and wait up to `wait_s` for the first of it.

        Raises
        ------
        PeerLost
            The other process is gone, and everything that it said was given.
        """
        self._take(0.0)
        if not self._inbox and not self._ended and wait_s:
            self._take(wait_s)
        said, self._inbox = self._inbox, []
        if not said and self._ended:
            raise PeerLost(f"the {self.peer} process is gone")
        return said

    def wait_for(self, kind: str) -> Message:
        """Wait for one message; `receive` gives the others later.

        Raises
        ------
        PeerLost
            The other process is gone, or says nothing.
        """
        while True:
            for place, message in enumerate(self._inbox):
                if message["kind"] == kind:
                    return self._inbox.pop(place)
            if self._ended:
                raise PeerLost(f"the {self.peer} process is gone, and has not said {kind!r}")
            if not self._take(self.timeout_s):
                raise self.silent(f"{kind!r} is due")

    def silent(self, why: str) -> PeerLost:
        """The error for a peer that said nothing for as long as it may."""
        return PeerLost(f"the {self.peer} process has said nothing for {self.timeout_s:g} s, and {why}")

    def late(self, what: str) -> PeerLost:
        """The error for a peer that has not done something for as long as it may take."""
        return PeerLost(f"the {self.peer} process is late: {what} within {self.timeout_s:g} s")

    def close(self) -> None:
        """Hang up."""
        self._end.close()

    def _take(self, wait_s: float) -> bool:
        """Take in what has come, after waiting for it; False where nothing came."""
        came = False
        while not self._ended:
            try:
                self._end.settimeout(0.0 if came else wait_s)
                data = self._end.recv(_CHUNK)
            except (BlockingIOError, TimeoutError):
                break
            except OSError:  # reset by the other side, or closed by this one
                data = b""
            came = True
            if not data:
                self._ended = True
                break
            *lines, self._bytes = (self._bytes + data).split(b"\n")
            self._inbox += map(json.loads, lines)
        return came
