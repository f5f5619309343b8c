"""What machines are like on which a vendor's driver cannot be used, and what people are told there (R5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.emulator.control import Vendor


@dataclass(frozen=True)
class Case:
    """What a machine is like, and what people are told there."""

    name: str
    vendor: Vendor
    profile: str
    reason: str
    cure: str
    knobs: tuple[tuple[str, Any], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    shell: tuple[str, ...] = ()


NODE = "No device node /dev/"
CASES = [
    Case("stub", "cuda", "cuda-stub", "is a stub for linking, not the driver", "Take its folder off LD_LIBRARY_PATH"),
    Case(
        "no CUDA device", "cuda", "cuda-no-device", "finds no device (CUDA_ERROR_NO_DEVICE)", f"{NODE}nvidia* is here"
    ),
    Case("no HIP device", "hip", "hip-no-device", "finds no device (hipErrorInvalidDevice)", f"{NODE}kfd is here"),
    Case(
        "vGPU",
        "cuda",
        "cuda-vgpu",
        "cuMemGetAllocationGranularity: CUDA_ERROR_NOT_SUPPORTED (801",
        "virtual GPU a profile",
    ),
    Case(
        "CUDA attribute off",
        "cuda",
        "cuda-13",
        "device 0 says that it has no virtual memory",
        "Use a newer GPU or driver",
        (("vmm_attr", 0),),
    ),
    Case(
        "HIP attribute off",
        "hip",
        "hip-10.0",
        "device 0 says that it has no virtual memory",
        "Update the kernel (amdgpu)",
        (("vmm_attr", 0),),
    ),
    Case(
        "HIP turned off",
        "hip",
        "hip-10.0",
        "HIP_VMEM_MANAGE_SUPPORT=0 turns virtual memory management off",
        "Unset HIP_VMEM_MANAGE_SUPPORT",
        env=(("HIP_VMEM_MANAGE_SUPPORT", "0"),),
    ),
    Case(
        "old CUDA",
        "cuda",
        "cuda-13",
        "the driver is for CUDA 10.2, older than 11.0",
        "Update the NVIDIA display driver",
        (("version", 10020),),
    ),
    Case("HIP 6.4", "hip", "hip-6.4", "the HIP runtime is 6.4; before 7.0", "Update to ROCm 7.12 or newer"),
    Case(
        "HIP 6.4 all the same",
        "hip",
        "hip-6.4",
        "the HIP runtime is 6.4; before 7.0",
        "Update to ROCm 7.12 or newer",
        env=(("VMMCACHE_HIP_UNIFORM_CHUNKS", "1"),),
    ),
    Case("HIP 7.0", "hip", "hip-7.0", "the HIP runtime is 7.0, which rejects", "or set VMMCACHE_HIP_UNIFORM_CHUNKS=1"),
    Case("HIP 7.2", "hip", "hip-7.2", "unequal sizes share a reservation (rocm-systems#2516)", "Update to ROCm 7.12"),
    Case(
        "wrong libcuda",
        "cuda",
        "cuda-13",
        "the library lacks cuMemAddressReserve",
        "Update the NVIDIA display driver",
        (("product", "cuda-decoy"),),
    ),
    Case(
        "wrong libamdhip64",
        "hip",
        "hip-10.0",
        "the runtime lacks hipMemAddressReserve",
        "Update to ROCm 7.12 or newer",
        (("product", "hip-decoy"),),
    ),
    Case(
        "crash at load",
        "cuda",
        "cuda-13",
        "the probe died of SIGSEGV; the vendor's library crashes",
        "Reinstall or update the vendor's driver",
        (("on_load", "crash"),),
    ),
    Case(
        "abort at load", "hip", "hip-10.0", "the probe died of SIGABRT", "Reinstall or update", (("on_load", "abort"),)
    ),
    Case(
        "crash in a call",
        "hip",
        "hip-10.0",
        "the probe died of SIGSEGV",
        "Reinstall or update",
        (("faults", "hipMemMap:2:crash"),),
    ),
    Case(
        "hang at load",
        "cuda",
        "cuda-13",
        "gave no answer within 2 s",
        "give it longer with VMMCACHE_PROBE_TIMEOUT_S",
        (("on_load", "hang"),),
        (("VMMCACHE_PROBE_TIMEOUT_S", "2"),),
    ),
    Case(
        "hang in a call",
        "hip",
        "hip-10.0",
        "gave no answer within 2 s",
        "the device's kernel log",
        (("faults", "hipMemCreate:1:hang"),),
        (("VMMCACHE_PROBE_TIMEOUT_S", "2"),),
    ),
    Case(
        "few addresses",
        "cuda",
        "cuda-13",
        "at most 1 GiB of addresses can be had, less than 16 GiB",
        "`ulimit -v`",
        (("va_limit", 1 << 30),),
    ),
    Case(
        "ulimit -v",
        "hip",
        "hip-10.0",
        "of addresses can be had, less than 64 GiB of memory",
        "`ulimit -v`",
        (("total", 64 << 30),),
        shell=("bash", "-c", 'ulimit -v 41943040; exec "$@"', "bash"),
    ),
    Case(
        "unknown status",
        "cuda",
        "cuda-13",
        "cuInit: unknown (12345",
        "Update the bindings (cuda-bindings)",
        (("init_code", 12345),),
    ),
    Case(
        "no memory",
        "hip",
        "hip-10.0",
        "hipMemCreate of 4 KiB on device 0: hipErrorOutOfMemory (2), 0 B of 16 GiB are free",
        "free memory that other processes",
        (("other_use", 16 << 30),),
    ),
]
