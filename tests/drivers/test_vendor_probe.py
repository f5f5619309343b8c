"""R5: every reason that people meet, with its own text and its own cure, from a probe that does not fall over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.probe_cases import CASES, Case
from tests.emulator.control import ROOT, Emulator, Vendor
from vmmcache_cuda._survey import _no_device_cure as cuda_cure
from vmmcache_hip._survey import _no_device_cure as hip_cure


def probe(environment: dict[str, str], vendor: str, *shell: str) -> tuple[int, dict[str, Any]]:
    """Exit status of ``vmmcache probe`` and the driver's entry."""
    child = subprocess.run(
        [*shell, sys.executable, "-m", "vmmcache", "probe", "--driver", vendor, "--json"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.stdout, child.stderr
    (entry,) = json.loads(child.stdout)["drivers"]
    found: dict[str, Any] = entry
    return child.returncode, found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_is_wrong_is_said_with_what_helps(case: Case) -> None:
    emulator = Emulator(case.vendor, case.profile, **dict(case.knobs))
    status, entry = probe({**emulator.environment, **dict(case.env)}, case.vendor, *case.shell)
    assert (status, entry["status"]) == (1, "unavailable")
    assert case.reason in entry["reason"]
    assert case.cure in entry["cure"]


@pytest.mark.parametrize(
    ("cure", "name"),
    [(cuda_cure, "nvidiactl"), (cuda_cure, "dxg"), (cuda_cure, "nvmap"), (hip_cure, "kfd"), (hip_cure, "dxg")],
)
def test_who_has_a_device_node_of_whatever_name_is_not_sent_to_look_for_one(
    cure: Callable[[Path], str], name: str, tmp_path: Path
) -> None:
    """Under WSL2 and on a Jetson it is called otherwise."""
    assert cure(tmp_path).startswith("No device node")
    (tmp_path / name).touch()
    assert cure(tmp_path).startswith("Check ")


def test_no_two_reasons_are_alike() -> None:
    """Each has its own text: nobody reads of a driver to update who has a limit to raise."""
    told = {(case.reason, case.cure) for case in CASES if case.name != "HIP 6.4 all the same"}
    assert len(told) == len(CASES) - 1


@pytest.mark.parametrize(("vendor", "library"), [("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so")])
def test_without_a_library_its_name_is_said(vendor: str, library: str) -> None:
    nowhere = {**os.environ, "LD_LIBRARY_PATH": "", "ROCM_PATH": "/nonexistent"}
    names = [library] if vendor == "cuda" else [library, *(f"{library}.{version}" for version in (5, 6, 7))]
    if where := next(filter(None, map(library_here, names)), None):
        pytest.skip(f"{library} is installed here: {where}")
    status, entry = probe(nowhere, vendor)
    assert status == 1
    assert entry["reason"] == f"{library} was not found"
    assert "Install the" in entry["cure"]
    assert [step["name"] for step in entry["steps"]] == ["load"]


@pytest.mark.parametrize(
    ("vendor", "profile", "facts", "losses", "unmet"),
    [
        ("cuda", "cuda-13", {"handle_types": ["posix_fd"], "rdma": True, "dmabuf": True}, "no fabric handles", []),
        ("cuda", "cuda-mig", {"handle_types": ["posix_fd"], "rdma": True}, "no fabric handles", []),
        ("cuda", "cuda-fabric", {"handle_types": ["fabric"], "rdma": True}, "", []),
        ("cuda", "cuda-no-imex", {"handle_types": ["posix_fd"]}, "CUDA_ERROR_NOT_PERMITTED (800", []),
        ("cuda", "cuda-wsl2", {"rdma": False, "dmabuf": False}, "CUDA_ERROR_UNKNOWN (999", ["rdma", "dma-buf"]),
        ("cuda", "cuda-jetson", {"rdma": False}, "no RDMA of such memory", ["rdma", "dma-buf"]),
        ("hip", "hip-10.0", {"handle_types": ["posix_fd"], "rdma": True, "dmabuf": True}, "no fabric handles", []),
        ("hip", "hip-7.12", {"rdma": False}, "no RDMA of such memory", ["rdma"]),
    ],
)
def test_what_works_less_well_than_it_could_is_told_and_no_reason_against_it(
    vendor: Vendor, profile: str, facts: dict[str, Any], losses: str, unmet: list[str]
) -> None:
    """R1, D9: nothing is downgraded in silence."""
    status, entry = probe(Emulator(vendor, profile).environment, vendor)
    assert (status, entry["status"], entry["reason"]) == (0, "ok", None)
    (device,) = entry["devices"]
    assert device["vmm"]
    assert {name: device[name] for name in facts} == facts
    assert losses in " ".join(device["losses"])
    failed = [step for step in device["steps"] if not step["ok"]]
    assert [step["name"] for step in failed if step["name"] != "dma-buf" or "dma-buf" in unmet] == unmet
    assert all(step["reason"] and step["cure"] for step in failed)


def test_all_devices_are_asked() -> None:
    status, entry = probe(Emulator("cuda", "cuda-13", devices=8).environment, "cuda")
    assert status == 0
    assert [device["device"] for device in entry["devices"]] == [f"cuda:{index}" for index in range(8)]
    assert all(device["vmm"] for device in entry["devices"])
    assert entry["library"]["version"] == "13.0"
    assert entry["library"]["path"].endswith("libcuda.so.1")


def test_the_operators_word_makes_older_runtimes_usable() -> None:
    """D4, D11: and what is known to be wrong with them is still shown."""
    environment = {**Emulator("hip", "hip-7.2").environment, "VMMCACHE_HIP_UNIFORM_CHUNKS": "1"}
    status, entry = probe(environment, "hip")
    assert (status, entry["reason"]) == (0, None)
    quirks = " ".join(entry["devices"][0]["quirks"])
    assert "(rocm-systems#2516)" in quirks
    assert "does not return to the device" in quirks


def test_too_few_descriptors_are_told() -> None:
    """D14."""
    limited = ("bash", "-c", 'ulimit -n 512; exec "$@"', "bash")
    status, entry = probe(Emulator("hip", "hip-7.14").environment, "hip", *limited)
    assert status == 0
    (step,) = [step for step in entry["devices"][0]["steps"] if step["name"] == "fd limit"]
    assert not step["ok"]
    assert step["reason"] == "512/512 open files are allowed, and an allocation takes 1"
    assert "ulimit -n" in step["cure"]


def test_the_parent_never_loads_the_library() -> None:
    """R2, R3: an engine asks before anything has touched the device, and may fork afterwards."""
    script = """
from vmmcache import vmm_unavailable_reason
print(vmm_unavailable_reason("cuda:0"), vmm_unavailable_reason("cuda:3"))
print("libcuda" in open("/proc/self/maps").read())
"""
    child = Emulator("cuda", "cuda-13").run(script)
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == "None there is no device 3; cuda has 1\nFalse\n"


@cache
def library_here(name: str) -> str | None:
    """The path of a library that the machine itself has, asked in another process."""
    maps = "[line.split()[-1] for line in open('/proc/self/maps') if name in line][0]"
    script = f"import ctypes; name = {name!r}; ctypes.CDLL(name); print({maps})"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return child.stdout.strip() if child.returncode == 0 else None


def test_a_real_runtime_without_a_device_is_refused_for_its_age() -> None:
    """D4, D8, with Debian's libamdhip64-5, a HIP 5.2 that has only a versioned name, where it is installed."""
    if library_here("libamdhip64.so.5") is None:
        status, entry = probe({**os.environ}, "hip")
        pytest.skip(f"libamdhip64.so.5 is not installed here; the probe says: {entry['reason']}")
    status, entry = probe({**os.environ}, "hip")
    assert status == 1
    assert "the HIP runtime is 5.2; before 7.0" in entry["reason"]
    assert entry["cure"] == "Update to ROCm 7.12 or newer"
    assert entry["library"]["version"] == "5.2"
