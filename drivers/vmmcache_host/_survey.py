"""What the host says before it is opened."""

from __future__ import annotations

import os
import platform
import sys

from vmmcache import Step, Survey

__all__ = ["survey"]


def survey() -> Survey:
    """Ask for Linux and memory files."""
    libc = " ".join(part for part in platform.libc_ver() if part) or "libc"
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        step = Step(
            "load",
            ok=False,
            reason=f"{platform.system()} has no memory files (memfd)",
            cure="Use Linux 3.17 or newer, or a GPU driver",
        )
        return Survey(steps=(step,))
    return Survey(
        steps=(Step("load", ok=True, detail=f"{libc}, Linux {platform.release()}"),),
        devices=(f"host memory, {platform.machine()}",),
        library_path=None,
        library_version=libc,
    )
