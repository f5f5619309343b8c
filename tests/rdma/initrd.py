"""An initial file system for a virtual machine, written without tools: cpio's newc format, compressed."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Mapping

__all__ = ["initrd"]

_FOLDER = stat.S_IFDIR | 0o755
_PROGRAM = stat.S_IFREG | 0o755


def initrd(files: Mapping[str, bytes], folders: tuple[str, ...]) -> bytes:
    """The archive, with `files` by their path, all of them executable, and `folders` before them."""
    entries = [(name, _FOLDER, b"") for name in folders]
    entries += [(name, _PROGRAM, content) for name, content in files.items()]
    archive = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields)
        archive += name.encode() + b"\0"
        archive += bytes(-len(archive) % 4)
        archive += content
        archive += bytes(-len(archive) % 4)
    return gzip.compress(bytes(archive), mtime=0)
