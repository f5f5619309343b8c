"""D11: what is known to be wrong with which versions is data, and the drivers do what their tables say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vmmcache import DriverUnavailable
from vmmcache.quirks import Quirk, applying
from vmmcache_cuda import _quirks as cuda
from vmmcache_hip import _quirks as hip
from vmmcache_hip._version import check_version, version_of

TABLES = [cuda.QUIRKS, hip.QUIRKS]


@pytest.mark.parametrize("table", TABLES, ids=["cuda", "hip"])
def test_every_quirk_says_what_and_what_follows_and_who_says_so(table: tuple[Quirk, ...]) -> None:
    assert len({quirk.key for quirk in table}) == len(table)
    for quirk in table:
        assert quirk.key.isidentifier()
        assert len(quirk.what) > 20
        assert quirk.consequence
        assert re.search(r"#\d+|\.h \d|source", quirk.source), quirk.source
        assert not quirk.what.endswith(".")
        if quirk.since and quirk.until:
            assert quirk.since < quirk.until


@pytest.mark.parametrize(
    ("version", "keys"),
    [
        ((6, 4), {"too_old", "map_errors_dropped", "import_by_pointer", "small_granularity"}),
        ((7, 0), {"unequal_sizes", "map_errors_dropped", "import_by_pointer", "small_granularity"}),
        ((7, 1), {"unequal_sizes", "map_errors_dropped", "small_granularity"}),
        ((7, 2), {"unequal_sizes", "keeps_memory", "map_errors_dropped", "small_granularity"}),
        ((7, 11), {"unequal_sizes", "keeps_memory", "map_errors_dropped", "small_granularity"}),
        ((7, 12), {"map_errors_dropped", "small_granularity"}),
        ((7, 14), {"fd_per_allocation"}),
        ((7, 15), set()),
    ],
)
def test_which_quirks_concern_which_hip(version: tuple[int, int], keys: set[str]) -> None:
    assert set(applying(hip.QUIRKS, version)) == keys


@pytest.mark.parametrize(
    ("version", "platform", "keys"),
    [
        ((13, 0), None, {"dmabuf_no_pcie", "unmap_does_not_wait"}),
        ((13, 0), "wsl", {"dmabuf_no_pcie", "unmap_does_not_wait", "no_exportable", "rdma_attribute_lies"}),
        ((12, 1), None, {"dmabuf_no_pcie", "unmap_does_not_wait", "slow_exportable"}),
        ((12, 2), None, {"dmabuf_no_pcie", "unmap_does_not_wait"}),
    ],
)
def test_which_quirks_concern_which_cuda(version: tuple[int, int], platform: str | None, keys: set[str]) -> None:
    assert set(applying(cuda.QUIRKS, version, platform)) == keys


@pytest.mark.parametrize(
    ("release", "platform"),
    [
        ("5.15.153.1-microsoft-standard-WSL2\n", "wsl"),
        ("4.4.0-19041-Microsoft\n", "wsl"),
        ("6.1.0-18-amd64\n", None),
        ("6.8.0-1021-azure\n", None),
    ],
)
def test_wsl_is_known_by_its_kernel(release: str, platform: str | None, tmp_path: Path) -> None:
    """Azure is Microsoft's as well, and no WSL."""
    (tmp_path / "osrelease").write_text(release)
    assert cuda.platform(tmp_path / "osrelease") == platform


@pytest.mark.parametrize(
    ("number", "version"),
    [
        (50221153, (5, 2)),
        (60443484, (6, 4)),
        (70152802, (7, 1)),
        (70226015, (7, 2)),
        (70253211, (7, 2)),
        (71260540, (7, 12)),
        (71460850, (7, 14)),
        (71526333, (7, 15)),
    ],
)
def test_a_published_version_integer_is_read(number: int, version: tuple[int, int]) -> None:
    assert version_of(number) == version


@pytest.mark.parametrize(
    ("version", "wanted", "uniform"),
    [
        *((version, None, False) for version in ((7, 12), (7, 14), (7, 15), (8, 0), (10, 0))),
        *((version, "1", False) for version in ((7, 12), (10, 0))),
        *((version, "1", True) for version in ((7, 0), (7, 2), (7, 11))),
    ],
)
def test_the_gate_lets_through_what_is_right_or_made_right(
    version: tuple[int, int], wanted: str | None, uniform: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4."""
    if wanted is not None:
        monkeypatch.setenv("VMMCACHE_HIP_UNIFORM_CHUNKS", wanted)
    assert check_version(version) is uniform


@pytest.mark.parametrize(
    ("version", "wanted", "names"),
    [
        *((version, None, "rocm-systems#2516") for version in ((7, 0), (7, 1), (7, 2), (7, 11))),
        ((7, 2), "0", "rocm-systems#2516"),
        ((7, 2), "", "VMMCACHE_HIP_UNIFORM_CHUNKS=1"),
        *((version, None, "before 7.0") for version in ((5, 2), (6, 4), (6, 99))),
        *((version, "1", "before 7.0") for version in ((5, 2), (6, 4))),
    ],
)
def test_the_gate_refuses_the_rest_and_names_defect_and_cure(
    version: tuple[int, int], wanted: str | None, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4."""
    if wanted is not None:
        monkeypatch.setenv("VMMCACHE_HIP_UNIFORM_CHUNKS", wanted)
    with pytest.raises(DriverUnavailable) as caught:
        check_version(version)
    assert names in str(caught.value)
    assert ".".join(map(str, version)) in caught.value.reason
    assert "Update to ROCm 7.12 or newer" in caught.value.cure
