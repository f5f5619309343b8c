"""D15, S14: how much host memory may be used, and who says so: a setting, control groups, the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmmcache import ConfigError, host_memory
from vmmcache.units import GIB, MIB
from vmmcache_host._driver import HostDriver

MEMINFO = """\
MemTotal:       16777216 kB
MemFree:         1000000 kB
MemAvailable:    8388608 kB
HugePages_Total:       0
"""


def group(folder: Path, limit: object, used: int, cache: int = 0, version: int = 2) -> None:
    """The files of a memory control group."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file") if version == 2 else (
        "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )  # fmt: skip
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\nx{names[2]} 77\n")


def limits(membership: str, root: Path) -> list[tuple[int, int]]:
    return list(host_memory._cgroup_limits(membership, root))


def test_the_kernels_own_numbers_are_read_in_bytes() -> None:
    assert host_memory._meminfo(MEMINFO) == (16 * GIB, 8 * GIB)


def test_a_version_2_group_sets_a_limit_and_gives_its_cache_back(tmp_path: Path) -> None:
    group(tmp_path / "app", 4 * GIB, GIB, cache=256 * MIB)
    assert limits("0::/app\n", tmp_path) == [(4 * GIB, 3 * GIB + 256 * MIB)]


def test_groups_above_set_limits_too(tmp_path: Path) -> None:
    group(tmp_path / "pod" / "app", 4 * GIB, GIB)
    group(tmp_path / "pod", 2 * GIB, GIB)
    group(tmp_path, "max", 3 * GIB)
    assert limits("0::/pod/app\n", tmp_path) == [(4 * GIB, 3 * GIB), (2 * GIB, GIB)]


def test_a_group_without_a_limit_sets_none(tmp_path: Path) -> None:
    group(tmp_path / "app", "max", GIB)
    assert limits("0::/app\n", tmp_path) == []


def test_a_version_1_group_is_found_by_its_controller(tmp_path: Path) -> None:
    group(tmp_path / "memory" / "app", 4 * GIB, GIB, cache=MIB, version=1)
    membership = "9:cpu,cpuacct:/elsewhere\n4:memory:/app\n1:name=systemd:/x\n0::/\n"
    assert limits(membership, tmp_path) == [(4 * GIB, 3 * GIB + MIB)]


def test_a_version_1_controller_may_share_its_hierarchy(tmp_path: Path) -> None:
    group(tmp_path / "memory" / "app", 4 * GIB, GIB, version=1)
    assert limits("4:cpu,memory:/app\n", tmp_path) == [(4 * GIB, 3 * GIB)]


def test_in_a_container_the_path_may_be_the_hosts_and_only_the_root_is_there(tmp_path: Path) -> None:
    group(tmp_path, 2 * GIB, GIB)
    assert limits("0::/docker/0123abcd\n", tmp_path) == [(2 * GIB, GIB)]
    group(tmp_path / "memory", 3 * GIB, GIB, version=1)
    assert limits("4:memory:/docker/0123abcd\n", tmp_path) == [(3 * GIB, 2 * GIB)]


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    group(tmp_path / "app", GIB, 2 * GIB)
    assert limits("0::/app\n", tmp_path) == [(GIB, 0)]


def test_no_control_group_is_no_limit(tmp_path: Path) -> None:
    assert limits("0::/app\n", tmp_path) == []
    assert limits("", tmp_path) == []


# Together -------------------------------------------------------------------------------------------------------------


def test_without_a_setting_the_source_is_the_tightest_of_kernel_and_groups() -> None:
    budget = host_memory.read_host_memory()
    assert budget.source in ("MemAvailable", "cgroup")
    assert 0 < budget.free <= budget.total


@pytest.mark.parametrize(("value", "nbytes"), [("64MiB", 64 * MIB), ("1.5G", 3 * GIB // 2), ("2097152", 2 * MIB)])
def test_a_setting_wins(monkeypatch: pytest.MonkeyPatch, value: str, nbytes: int) -> None:
    """S12: manual sizes win, also where they are more than the machine has."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", value)
    info = HostDriver().memory_info()
    assert (info.free, info.total, info.source) == (nbytes, nbytes, "configured")


@pytest.mark.parametrize("value", ["-1", "lots", "1e9", "5 apples"])
def test_a_setting_that_is_no_size_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", value)
    with pytest.raises(ConfigError, match=r"^VMMCACHE_HOST_MEMORY="):
        HostDriver()


def test_an_empty_setting_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what may be had as for what is said to be free."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "")
    driver = HostDriver()
    info = driver.memory_info()
    assert info.source in ("MemAvailable", "cgroup")
    over = (info.free // driver.granule + 1024) * driver.granule
    if over > info.total:
        over = info.total // driver.granule * driver.granule
    with pytest.raises(MemoryError):
        driver.create(over)


def test_what_was_committed_is_no_longer_free_even_if_nobody_has_touched_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does not know of it yet."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "64MiB")
    driver = HostDriver()
    allocation = driver.create(16 << 20)
    assert driver.memory_info().free == 48 * MIB
    driver.release(allocation)
    assert driver.memory_info().free == 64 * MIB


def test_untouched_memory_counts_against_the_kernels_number_too() -> None:
    driver = HostDriver()
    before = driver.memory_info()
    nbytes = before.free // 2 // driver.granule * driver.granule
    allocation = driver.create(nbytes)
    after = driver.memory_info()
    # Neighbours take and give memory meanwhile; half of what is free is more than they do.
    assert after.free < before.free - nbytes // 2
    with pytest.raises(MemoryError):
        driver.create((before.free // driver.granule) * driver.granule)
    driver.release(allocation)


def test_a_smaller_setting_later_clamps_and_never_goes_below_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """S14."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "64MiB")
    driver = HostDriver()
    allocation = driver.create(32 << 20)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    assert driver.memory_info().free == 0
    with pytest.raises(MemoryError):
        driver.create(driver.granule)
    driver.release(allocation)
    assert driver.memory_info().free == 16 * MIB
