"""What is there, asked without opening it."""

from __future__ import annotations

import os

from vmmcache import Step, Survey

__all__ = ["survey"]


def survey() -> Survey:
    """Ask for memory files, the only thing that the pool needs of the system."""
    if not hasattr(os, "memfd_create"):
        reason, cure = "this system has no memory files (memfd)", "Use Linux"
        return Survey(steps=(Step("load", ok=False, reason=reason, cure=cure),))
    return Survey(steps=(Step("load", ok=True, detail="memory files"),), devices=("pool of shared memory",))
