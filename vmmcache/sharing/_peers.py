"""Sockets in the file system, and who is at the other end of them."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from collections.abc import Collection
from contextlib import ExitStack
from typing import Final, NamedTuple

from vmmcache.errors import ConfigError, SharingError

__all__ = ["Credentials", "check_path", "connect", "credentials", "listen", "stranger", "unlink"]

MAX_PATH: Final = 107
"""Bytes of ``sun_path`` of Linux, without the terminating zero."""
_UCRED: Final = struct.Struct("3i")


class Credentials(NamedTuple):
    """Who was at the other end when the connection was made, as the kernel knows it (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"process {self.pid} of user {self.uid}"


def credentials(sock: socket.socket) -> Credentials:
    """The other end of a connected socket."""
    return Credentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def stranger(peer: Credentials, uids: Collection[int]) -> str | None:
    """Why a peer is not to be trusted with the memory of this process; None where it is."""
    if peer.uid == os.geteuid() or peer.uid in uids:
        return None
    return f"user {peer.uid} is not user {os.geteuid()}, and not among uids={sorted(uids)}"


def check_path(path: str | os.PathLike[str]) -> str:
    """A path that a socket can have, and that the file system protects."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("path", path, "must be a path")
    text = str(os.fspath(path))
    if not text or "\0" in text:
        raise ConfigError("path", path, "must be a path in the file system: an abstract name has no mode to protect it")
    if len(os.fsencode(text)) > MAX_PATH:
        raise ConfigError("path", path, f"is longer than the {MAX_PATH} bytes that a socket's path may have")
    return text


def listen(path: str, mode: int) -> socket.socket:
    """A listening socket at a path, of a mode. One that nobody listens at any more is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with ExitStack() as undo:
            undo.callback(sock.close)
            if _is_abandoned(path):
                os.unlink(path)
            sock.bind(path)
            undo.callback(os.unlink, path)
            # Before listen: until then nobody can connect, whatever the mode was.
            os.chmod(path, mode)
            sock.listen(socket.SOMAXCONN)
            undo.pop_all()
    except OSError as error:
        raise ConfigError("path", path, f"cannot be listened at: {os.strerror(error.errno or 0)}") from error
    return sock


def unlink(path: str, inode: int, pid: int) -> None:
    """Remove a socket's file, unless it is somebody else's by now, or we are a child forked from who made it."""
    try:
        if os.getpid() == pid and os.stat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        return


def connect(path: str, timeout_s: float) -> socket.socket:
    """A socket connected to whoever listens at a path."""
    deadline = time.monotonic() + timeout_s
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            try:
                sock.settimeout(timeout_s)
                sock.connect(path)
                return sock
            except BlockingIOError:
                # Its queue is full; there is nothing to wait on.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
    except OSError as error:
        sock.close()
        raise SharingError(
            f"cannot be connected to: {os.strerror(error.errno or 0)}", peer=path, cure=_CURES.get(error.errno or 0)
        ) from error


_CURES: Final = {
    errno.ENOENT: "Start the TensorServer first, or check the path",
    errno.ECONNREFUSED: "Whoever listened there has ended without removing it; start the TensorServer again",
    errno.EACCES: "The socket is its owner's alone; connect as that user, or have it opened to yours (mode=, uids=)",
    errno.EAGAIN: "Too many wait to be let in; try again",
}


def _is_abandoned(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
