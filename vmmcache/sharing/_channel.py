"""One end of a connection: frames with descriptors, each of which is closed by whoever holds it."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from vmmcache.errors import SharingError
from vmmcache.fds import FD_CURE
from vmmcache.sharing._peers import credentials
from vmmcache.sharing._wire import BATCH, HEAD, Frame, pack, parse_head, unpack

__all__ = ["Channel", "Descriptors"]

_ROOM: Final = socket.CMSG_SPACE(BATCH * array.array("i").itemsize)


class Descriptors:
    """Descriptors that came with a frame. Closed when the block that holds them ends; importers make their own."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, data: bytes) -> None:
        """Own what a control message carries."""
        numbers = array.array("i")
        numbers.frombytes(data[: len(data) // numbers.itemsize * numbers.itemsize])
        self._numbers += numbers

    def close(self) -> None:
        """Close them all. The second time does nothing."""
        while self._numbers:
            os.close(self._numbers.pop())


class Channel:
    """A connected socket. One thread speaks through it at a time.

    Parameters
    ----------
    sock : socket.socket
        Owned from here on.
    timeout_s : float
        How long a frame that has begun may take.
    peer : str, optional
        What errors call the other end; by default its process.
    """

    def __init__(self, sock: socket.socket, timeout_s: float, peer: str | None = None) -> None:
        self.credentials: Final = credentials(sock)
        """Who is at the other end."""
        self.peer: Final = peer or str(self.credentials)
        self._sock = sock
        self.timeout_s: Final = timeout_s

    def fileno(self) -> int:
        """For waiting until the other end has said something."""
        return self._sock.fileno()

    def send(self, frame: Frame, descriptors: Sequence[int] = ()) -> None:
        """Send a frame; `descriptors` stay the caller's."""
        data = memoryview(pack(frame, len(descriptors)))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        deadline = time.monotonic() + self.timeout_s
        while data:
            try:
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                data = data[self._sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL) :]
            except OSError as error:
                raise self._gone("takes no more", error) from error
            ancillary = []  # they go with the first byte

    def receive(self, timeout_s: float | None = None) -> tuple[Frame, Descriptors]:
        """The next frame, waiting for its first byte as long as `timeout_s`, or for ever.

        Raises
        ------
        SharingError
            The other end is gone (``gone``), too slow, or sent what is no frame. No descriptor is left open.
        """
        with contextlib.ExitStack() as undo:
            descriptors = undo.enter_context(Descriptors())
            # Longer than a frame may take, where it has not begun.
            head = self._read(1, timeout_s, descriptors)
            deadline = time.monotonic() + self.timeout_s
            head += self._read_by(HEAD.size - 1, deadline, descriptors)
            kind, announced, nbytes = parse_head(head, self.peer)
            payload = self._read_by(nbytes, deadline, descriptors)
            if len(descriptors) != announced:
                raise SharingError(f"announced {announced} descriptors, sent {len(descriptors)}", peer=self.peer)
            frame = unpack(kind, payload, self.peer)
            undo.pop_all()
        return frame, descriptors

    def expect(self, *kinds: type[Frame], timeout_s: float | None = None) -> Frame:
        """The next frame, which has to be of one of these kinds and without descriptors."""
        frame, descriptors = self.receive(timeout_s)
        with descriptors:
            if not isinstance(frame, kinds) or descriptors:
                raise self.unexpected(frame, descriptors)
        return frame

    def unexpected(self, frame: Frame, descriptors: Sequence[int] | Descriptors) -> SharingError:
        """The error for a frame that makes no sense here."""
        return SharingError(
            f"sent {type(frame).__name__} with {len(descriptors)} descriptors where that makes no sense", peer=self.peer
        )

    def hang_up(self) -> None:
        """End the connection for both, from any thread: whoever waits for a frame finds that it is gone."""
        with contextlib.suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _read_by(self, nbytes: int, deadline: float, descriptors: Descriptors) -> bytes:
        parts = []
        while nbytes:
            parts.append(self._read(nbytes, max(0.001, deadline - time.monotonic()), descriptors))
            nbytes -= len(parts[-1])
        return b"".join(parts)

    def _read(self, nbytes: int, timeout_s: float | None, descriptors: Descriptors) -> bytes:
        try:
            self._sock.settimeout(timeout_s)
            data, ancillary, flags, _ = self._sock.recvmsg(nbytes, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise self._gone("says nothing", error) from error
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.take(content)
        if flags & socket.MSG_CTRUNC or len(descriptors) > BATCH:
            raise SharingError("sent more descriptors than there is room for", peer=self.peer, cure=FD_CURE)
        if not data:
            raise SharingError("has ended the connection", peer=self.peer, gone=True)
        return data

    def _gone(self, what: str, error: OSError) -> SharingError:
        late = isinstance(error, TimeoutError)
        return SharingError(
            f"{what} for too long" if late else f"is gone: {os.strerror(error.errno or 0)}",
            peer=self.peer,
            gone=not late,
        )
