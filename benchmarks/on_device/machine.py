"""What the machine is: all that somebody who reads the record elsewhere would ask for."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import shutil
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.on_device.children import ROOT, run
from benchmarks.on_device.record import Context, NotRun
from benchmarks.on_device.with_torch import torch_for

__all__ = ["machine"]

SMI_FIELDS: Final = (
    *("name", "driver_version", "vbios_version", "memory.total", "memory.used", "compute_cap", "mig.mode.current"),
    *("ecc.mode.current", "persistence_mode", "compute_mode", "pcie.link.gen.current", "pcie.link.width.current"),
)
VARIABLES: Final = re.compile(r"(CUDA|NVIDIA|PYTORCH|HIP|ROCR|ROCM|VMMCACHE|VMMEMU|LD_LIBRARY_PATH)")
SOURCES: Final = ("vmmcache", "drivers", "benchmarks")


def machine(context: Context, results: dict[str, Any]) -> None:
    """Library, kernel module, what the kernel lets us reach, and torch: importing it is part of its answer.

    The first import takes as long as the disk needs, so it is made here, where nothing else is waiting for it.
    """
    results["sources, sha256"] = _sources()
    results["kernel"] = f"{platform.system()} {platform.release()}"
    results["processor"] = _line(Path("/proc/cpuinfo"), "model name")
    results["memory"] = _line(Path("/proc/meminfo"), "MemTotal")
    results["open files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    results["user"] = os.getuid()
    results["environment"] = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)}
    results["kernel module"] = _first(Path("/proc/driver/nvidia/version")) or _first(Path("/sys/module/amdgpu/version"))
    results["peermem"] = any(name in _text(Path("/proc/modules")) for name in ("nvidia_peermem", "nv_peer_mem"))
    results["NICs"] = ", ".join(_names(Path("/sys/class/infiniband"))) or "none"
    results["device nodes"] = ", ".join(name for name in _names(Path("/dev")) if re.match(r"nvidia|kfd|dri", name))
    results["IMEX channels"] = ", ".join(_names(Path("/dev/nvidia-caps-imex-channels"))) or "none"
    if shutil.which("nvidia-smi") is not None:
        asked = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
        ended = run(asked, min(20.0, context.left))
        results["nvidia-smi"] = ended.trouble or dict(
            zip(SMI_FIELDS, (part.strip() for part in ended.stdout.partition("\n")[0].split(",")), strict=False)
        )
    start = time.perf_counter()
    try:
        torch = torch_for(context)
    except NotRun as why:
        results["torch"] = str(why)
        return
    results["torch imported, s"] = time.perf_counter() - start
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    results["torch"] = {
        "version": torch.__version__,
        "for": torch.version.cuda or torch.version.hip,
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "allocator": torch.cuda.get_allocator_backend(),
    }


def _sources() -> str:
    """Which code was run: a copy of a checkout says of no commit."""
    hashed = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")):
        hashed.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return hashed.hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _first(path: Path) -> str | None:
    return _text(path).partition("\n")[0].strip() or None


def _line(path: Path, field: str) -> str | None:
    found = re.search(rf"^{field}\s*:\s*(.*)$", _text(path), re.MULTILINE)
    return found and found.group(1)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
