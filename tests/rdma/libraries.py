"""Which libibverbs a job has to meet first in the machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.rdma.machine import Machine

__all__ = ["library_folders"]


def library_folders(job: str, machine: Machine) -> tuple[Path, ...]:
    """For NIXL, a folder in which its wheel's own libibverbs has the plain name.

    The provider of soft-RoCE binds to whatever is called libibverbs.so.1; were that another one than UCX uses, UCX
    would find no device.
    """
    if job != "nixl":
        return ()
    found = importlib.util.find_spec("nixl_cu12")
    if found is None or found.origin is None:
        return ()
    bundled = Path(found.origin).parent.parent / "nixl_cu12.libs"
    library = next(bundled.glob("libibverbs-*.so.*"), None)
    if library is None:
        return ()
    folder = machine.folder / "nixl-libraries"
    folder.mkdir(exist_ok=True)
    link = folder / "libibverbs.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    return (folder,)
