"""The libraries are built by the tests, and a machine that cannot build them says what it lacks."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.emulator import build
from tests.emulator.conftest import Load
from tests.emulator.control import Emulator


def exported(product: str) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", build.library(product)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def test_a_missing_compiler_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.CompilerMissing, match="apt-get install gcc"):
        build.compiler()


def test_what_does_not_compile_is_an_error_with_the_compiler_s_words() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)do not build.*nowhere\.c"):
        build.run(build.compiler(), "nowhere.c")


@pytest.mark.parametrize("product", build.PRODUCTS)
def test_only_the_vendor_s_names_and_the_control_s_are_exported(product: str) -> None:
    wanted = build.PRODUCTS[product]
    prefix = {"cuda": "cu", "hip": "hip", "decoy": "not_a_driver"}[wanted.front]
    names = exported(product)
    assert [name for name in names if not re.match(rf"{prefix}|vmmemu_", name)] == []
    assert names.isdisjoint(wanted.lacks)


def test_every_entry_point_of_cuda_can_be_looked_up() -> None:
    """cuGetProcAddress knows whatever is exported, without the interface's version suffix."""
    listed = set(
        re.findall(r'^    \{"\w+", "(\w+)", \d+\},$', (build.SOURCES / "cuda/symbols.c").read_text(), re.MULTILINE)
    )
    assert listed == {name for name in exported("cuda") if name.startswith("cu")} - {"cuGetProcAddress"}


def test_every_profile_loads(load: Load) -> None:
    names = load("cuda-13").control.profiles()
    for name in names:
        version = load(name).get("cuDriverGetVersion" if name.startswith("cuda") else "hipRuntimeGetVersion")
        assert version[0] == (34 if name == "cuda-stub" else 0), name
    assert len(names) == len(set(names)) > 20


@pytest.mark.parametrize("setting", ["profile", "knob"])
def test_a_misspelt_profile_or_knob_ends_the_process(setting: str) -> None:
    emulator = Emulator("cuda", "cuda-99") if setting == "profile" else Emulator("cuda", "cuda-13")
    child = emulator.run(
        "import ctypes, os\n"
        "library = ctypes.CDLL(os.environ['VMMEMU_LIBRARY'])\n"
        "library.vmmemu_profile(b'cuda-13', b'granularity=1')\n"
    )
    assert child.returncode == -6
    assert child.stderr.startswith(f"vmmemu: no such {setting}: ")


def test_the_loop_of_bare_calls_runs() -> None:
    for vendor, prefix in ("cuda", "cu"), ("hip-7", "hip"):
        child = subprocess.run(
            [build.growth_loop(), build.library(vendor), prefix, "2", "8"], capture_output=True, text=True, check=True
        )
        assert int(child.stdout) > 0
