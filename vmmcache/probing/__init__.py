"""What this host can do, why not, and the cure. Asked in a child process, which may crash or hang.

(The package is not called ``probe``, because `vmmcache.probe` is the function.)
"""

from __future__ import annotations

from vmmcache.probing.report import Choice, best_device, probe, probe_all, vmm_unavailable_reason

__all__ = ["Choice", "best_device", "probe", "probe_all", "vmm_unavailable_reason"]
