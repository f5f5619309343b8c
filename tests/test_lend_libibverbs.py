"""What `make` does for Mooncake on a machine without libibverbs, and leaves alone on one that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import lend_libibverbs
from tests.lend_libibverbs import lend


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "nixl_cu12.libs").mkdir()
    for name in ("libibverbs-1de1.so.1.14", "libnl-3-47cd.so.200", "libnl-route-3-3ad4.so.200", "libother.so"):
        (tmp_path / "nixl_cu12.libs" / name).write_text(name)
    return tmp_path


def test_the_files_that_it_takes_are_linked_and_again_the_second_time(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lend_libibverbs, "NAME", "libthere_is_no_such.so.1")
    for _ in range(2):
        assert "uses NIXL's copy" in lend(packages)
        found = {path.name: path.read_text() for path in (packages / "mooncake").iterdir()}
        assert found == {
            "libthere_is_no_such.so.1": "libibverbs-1de1.so.1.14",
            "libnl-3-47cd.so.200": "libnl-3-47cd.so.200",
            "libnl-route-3-3ad4.so.200": "libnl-route-3-3ad4.so.200",
        }


def test_a_system_that_has_it_is_left_alone(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lend_libibverbs, "NAME", "libc.so.6")
    assert lend(packages) == "the system has libc.so.6"
    assert list((packages / "mooncake").iterdir()) == []


def test_without_nixl_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lend_libibverbs, "NAME", "libthere_is_no_such.so.1")
    assert "is missing, and so is" in lend(tmp_path)
