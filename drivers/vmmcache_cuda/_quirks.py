"""What is known of NVIDIA's drivers. Versions are those of ``cuDriverGetVersion``, as (major, minor)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vmmcache.quirks import Quirk

__all__ = ["QUIRKS", "platform"]

QUIRKS: Final = (
    Quirk(
        "no_exportable",
        "Under WSL2 an allocation with a shareable handle type fails from 4 GiB on, as if memory were exhausted",
        "Allocations are made without handle type",
        "openxla/xla#48979, NVIDIA/cuda-python#1045",
        platform="wsl",
    ),
    Quirk(
        "rdma_attribute_lies",
        "Under WSL2 the attribute says that RDMA works, and granting access to such memory fails with 999",
        "Memory is created without the RDMA flag",
        "pytorch/pytorch#192330",
        platform="wsl",
    ),
    Quirk(
        "slow_exportable",
        "Drivers before 12.2 create memory with a file descriptor handle type slowly",
        "None; the time of the round trip shows it",
        "pytorch/pytorch#130890 (driver 525)",
        until=(12, 2),
    ),
    Quirk(
        "dmabuf_no_pcie",
        "Before CUDA 12.8 the flag for a PCIe mapping of a dma-buf is unknown; some platforms refuse it later (801)",
        "The export is repeated without the flag",
        "ofiwg/libfabric#10976, #10995",
    ),
    Quirk(
        "unmap_does_not_wait",
        "The header says that cuMemUnmap waits for the device, and other sources that it does not always",
        "The device is waited for before every unmap",
        "cuda.h 13.0 (cuMemUnmap), PyTorch CUDACachingAllocator.cpp, cuda.core VMM design notes",
    ),
)


def platform(osrelease: Path = Path("/proc/sys/kernel/osrelease")) -> str | None:
    """``"wsl"`` under Windows' subsystem for Linux, else None."""
    return "wsl" if "microsoft" in osrelease.read_text("utf-8").lower() else None
