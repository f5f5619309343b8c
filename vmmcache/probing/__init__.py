"""What this host can do, why not, and the cure. Asked in a child process, which may crash or hang.

(The package is not called ``probe``, because `vmmcache.probe` is the function.) The names below are resolved at their
first use: the child needs none of them, and has no time to lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmmcache.probing.report import Choice, best_device, probe, probe_all, vmm_unavailable_reason

__all__ = ["Choice", "best_device", "probe", "probe_all", "vmm_unavailable_reason"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vmmcache.probing import report

    return getattr(report, name)
