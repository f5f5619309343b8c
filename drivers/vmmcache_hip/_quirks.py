"""What is known of AMD's runtimes. Versions are HIP's (not ROCm's), as (major, minor); ROCm 10.0 ships HIP 7.15."""

from __future__ import annotations

from typing import Final

from vmmcache.quirks import Quirk

__all__ = ["OLDEST", "QUIRKS", "UNIFORM_OLDEST"]

OLDEST: Final = (7, 12)
"""First version that grants access beside allocations of other sizes."""
UNIFORM_OLDEST: Final = (7, 0)
"""First version that does so where all allocations of a reservation have one size."""

QUIRKS: Final = (
    Quirk(
        "unequal_sizes",
        "hipMemSetAccess rejects a validly mapped range once allocations of unequal sizes share a reservation "
        "(rocm-systems#2516)",
        "The runtime is refused, unless VMMCACHE_HIP_UNIFORM_CHUNKS=1 makes all allocations of a reservation equal",
        "ROCm/rocm-systems#2516, fixed by #2451; clr source 7.0 to 7.2",
        since=(7, 0),
        until=(7, 12),
    ),
    Quirk(
        "too_old",
        "Before 7.0 mapping errors are dropped, one unmap of several mappings leaks, and access is granted only from "
        "the start of a mapping",
        "The runtime is refused",
        "clr and ROCr source 6.1 to 6.4, ROCm/ROCR-Runtime#285",
        until=(7, 0),
    ),
    Quirk(
        "keeps_memory",
        "Released memory does not return to the device while the addresses it was mapped at are reserved",
        "After sleep, free memory is measured; where it did not come back, the addresses are freed and reserved again",
        "ROCm/legacy-rocm-build#6021, fixed by rocm-systems#4363; vLLM #45827",
        since=(7, 2),
        until=(7, 12),
    ),
    Quirk(
        "map_errors_dropped",
        "hipMemMap says success although nothing was mapped",
        "Granting access, which follows at once, fails then; unmapping what is not mapped is no failure",
        "clr source 6.1 to 7.2, and right in 7.14's; those between are not known",
        until=(7, 14),
    ),
    Quirk(
        "import_by_pointer",
        "hipMemImportFromShareableHandle takes a pointer to the file descriptor instead of the descriptor",
        "It is given what the version expects",
        "clr source 2024, PyTorch gate ROCM_VERSION >= 70100, rocm-systems#1564",
        until=(7, 1),
    ),
    Quirk(
        "fd_per_allocation",
        "Every allocation holds a file descriptor",
        "The limit of open files is raised, or the error says so",
        "ROCm/rocm-systems#10604, pytorch/pytorch#192814",
        since=(7, 14),
        until=(7, 15),
    ),
    Quirk(
        "small_granularity",
        "The granularity is reported as 4 KiB, also where 2 MiB is right",
        "Memory is mapped in granules of at least 2 MiB",
        "ROCm/rocm-systems#9360, #1176",
        until=(7, 14),
    ),
)
