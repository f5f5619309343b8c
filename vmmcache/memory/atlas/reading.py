"""The map of another process."""

from __future__ import annotations

import json
import os
from typing import Final, NamedTuple

from vmmcache.errors import SharingError
from vmmcache.memory.atlas.known import VARIABLE
from vmmcache.memory.atlas.looking import started
from vmmcache.memory.atlas.places import file_of, folders_of, why_not_private
from vmmcache.memory.atlas.tables import AddressMap
from vmmcache.units import MIB

__all__ = ["Found", "read"]

_MOST: Final = 512 * MIB
_CURE: Final = f"Call vmmcache.publish() in it, or start it with {VARIABLE}=1"


class Found(NamedTuple):
    """A map, and whether it is of a process that still is."""

    map: AddressMap
    alive: bool
    """False: the process has ended without removing its map, which shows what it had last."""


def read(pid: int) -> Found:
    """What a process has published. Asks nothing of the process, which may hang, or have died.

    Raises
    ------
    SharingError
        There is no such process, or it has published nothing; or what is there cannot be trusted or understood.
    """
    peer = f"process {pid}"
    now = started(pid)
    uid = os.geteuid() if now is None else _owner(pid)
    for folder in folders_of(uid):
        try:
            if why_not_private(folder, uid) is not None:
                continue
            text = _text(file_of(folder, pid), peer)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            raise SharingError(
                "is another user's, and so is its map", peer=peer, cure=f"Look as user {uid}, or as root"
            ) from error
        try:
            data = json.loads(text)
        except ValueError as error:
            raise SharingError(f"wrote a file that is no map: {error}", peer=peer) from error
        found = AddressMap.from_dict(data, peer)
        if now is not None and found.started != now:
            continue  # of an earlier process of that number
        return Found(found, alive=now is not None)
    if now is None:
        raise SharingError("is no running process, and left no map", peer=peer, gone=True)
    raise SharingError("has published no map", peer=peer, cure=_CURE)


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return os.geteuid()  # ended meanwhile


def _text(path: str, peer: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise SharingError(f"wrote a map of more than {_MOST} bytes", peer=peer)
    return data.decode("utf-8", errors="replace")
