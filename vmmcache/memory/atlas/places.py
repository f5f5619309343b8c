"""Where maps are: a folder that only its user can enter."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vmmcache.errors import ConfigError
from vmmcache.memory.atlas.looking import started

__all__ = ["file_of", "folders_of", "private_folder", "remove_leftovers", "why_not_private"]

_KEPT_S: Final = 24 * 3600
"""How long the map of a process that ended without removing it can be looked at, at least."""


def private_folder() -> str:
    """The folder of this user, made where it is not there.

    Raises
    ------
    ConfigError
        It is somebody else's, or others may enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = os.path.join(runtime, "vmmcache") if runtime and os.path.isdir(runtime) else _temporary(os.geteuid())
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if (reason := why_not_private(folder, os.geteuid())) is not None:
        raise ConfigError("XDG_RUNTIME_DIR", runtime, f"{folder} {reason}; set it to a folder that is yours alone")
    return folder


def folders_of(uid: int) -> Iterator[str]:
    """Where a user's processes may have published, the likeliest first."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield os.path.join(runtime, "vmmcache")
    yield f"/run/user/{uid}/vmmcache"
    yield _temporary(uid)


def why_not_private(folder: str, uid: int) -> str | None:
    """Why what is in a folder may be anybody's; None where it is the user's alone."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        return "is no folder"
    if found.st_uid != uid:
        return f"belongs to user {found.st_uid}, not to user {uid}"
    if found.st_mode & 0o077:
        return f"can be entered by others (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def file_of(folder: str, pid: int) -> str:
    """The map of a process."""
    return os.path.join(folder, f"{pid}.json")


def remove_leftovers(folder: str) -> None:
    """Remove maps of processes that ended long ago without removing them."""
    for path in Path(folder).glob("*.json*"):
        number = path.name.partition(".")[0]
        with contextlib.suppress(FileNotFoundError):
            if number.isdecimal() and started(int(number)) is None and time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()


def _temporary(uid: int) -> str:
    return os.path.join(tempfile.gettempdir(), f"vmmcache-{uid}")
