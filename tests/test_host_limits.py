"""S14: of the kernel's number and the limits of control groups, what leaves least is the host's budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmmcache import host_memory
from vmmcache.host_memory import HostMemory, read_host_memory
from vmmcache.units import MIB


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of control groups in place of the machine's; every process belongs to its root."""
    monkeypatch.setattr(host_memory, "_CGROUPS", tmp_path)
    return tmp_path


def limit(root: Path, nbytes: int, used: int) -> None:
    """Set the limit of the root in both versions of the interface: which one a machine uses is its own business."""
    for folder, names in (
        (root, ("memory.max", "memory.current")),
        (root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ):
        folder.mkdir(exist_ok=True)
        for name, number in zip(names, (nbytes, used), strict=True):
            (folder / name).write_text(f"{number}\n")


def test_a_group_that_leaves_less_than_the_kernel_sets_the_budget(groups: Path) -> None:
    limit(groups, 64 * MIB, 16 * MIB)
    assert read_host_memory() == HostMemory(64 * MIB, 48 * MIB, "cgroup")


def test_a_group_that_is_over_its_limit_leaves_nothing(groups: Path) -> None:
    limit(groups, 64 * MIB, 80 * MIB)
    assert read_host_memory() == HostMemory(64 * MIB, 0, "cgroup")


def test_without_a_group_that_limits_the_kernels_number_counts(groups: Path) -> None:
    assert groups.is_dir()
    assert read_host_memory().source == "MemAvailable"


def test_a_group_that_leaves_more_than_there_is_changes_nothing(groups: Path) -> None:
    limit(groups, 1 << 60, 0)
    assert read_host_memory().source == "MemAvailable"
