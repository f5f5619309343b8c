"""What is published works where only it is installed: sdist, wheel, and the wheel in an environment of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that succeeds, outside the influence of this process's Python."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    child = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, f"{command} exited with {child.returncode}\n{child.stdout}\n{child.stderr}"
    return child.stdout


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def published(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation, so that nothing is fetched: the build tools are those that requirements.txt pins.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, repository, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(published: Path) -> Path:
    (wheel,) = published.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its declared dependencies, and nothing else: no torch, no sources."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, symlinks=True, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    (packages,) = home.glob("lib/python*/site-packages")
    # The dependencies lie on this machine already: each is linked in, with its metadata.
    for dependency in needed_by(next(iter(Distribution.discover(name="vmmcache", path=[str(packages)])))):
        for top in {file.parts[0] for file in dependency.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            (packages / top).symlink_to(Path(str(dependency.locate_file(top))))
    return home


def needed_by(wanted: Distribution) -> Iterator[Distribution]:
    """What a plain ``pip install`` brings along: requirements of requirements, extras left out."""
    names: set[str] = set()
    queue = [wanted]
    while queue:
        for requirement in queue.pop().requires or ():
            name, _, marker = requirement.partition(";")
            if not marker and (name := _name(name)) not in names:
                names.add(name)
                queue.append(distribution(name))
                yield queue[-1]


def files_of(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder.parent))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path, repository: Path, settings: dict[str, Any]) -> None:
    packages = [repository / path for path in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == set().union(*map(files_of, packages))


def test_the_wheel_holds_types_and_facts_of_models(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"vmmcache/py.typed", "vmmcache_host/py.typed"} <= set(names)
    assert any(re.fullmatch(r"vmmcache/models/.+\.json", name) for name in names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_every_package_of_the_wheel_has_types_and_every_schema_is_there(wheel: Path, repository: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert {f"{package}/py.typed" for package in packages} <= names
    schemas = {f"vmmcache/schemas/{path.name}" for path in (repository / "vmmcache/schemas").glob("*.json")}
    assert len(schemas) >= 6
    assert schemas <= names


def test_the_metadata_say_licence_versions_and_extras(wheel: Path, settings: dict[str, Any]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(file))
    project = settings["project"]
    assert metadata["License-Expression"] == "Apache-2.0"  # SPDX; so no classifier says it once more
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert not [each for each in classifiers if each.startswith("License")]
    assert metadata["Requires-Python"] == project["requires-python"]
    assert set(metadata.get_all("Provides-Extra") or []) == set(project["optional-dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# vmmcache")


def test_the_sdist_holds_what_it_takes_to_test_and_document_it(published: Path) -> None:
    (sdist,) = published.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "requirements.txt", "tests/conftest.py"} <= names
    assert {"docs/conf.py", "vmmcache/__init__.py", "drivers/vmmcache_host/__init__.py"} <= names
    assert {"SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/growth.py", "examples/engine.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "docs/_build"))]


def test_the_installed_wheel_finds_its_host_driver(installed: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    # From another folder: in the repository's root the sources would be imported instead of the wheel.
    report = json.loads(run(installed / "bin" / "vmmcache", "probe", "--json", cwd=tmp_path))
    (host,) = (driver for driver in report["drivers"] if driver["name"] == "host")
    assert host["status"] == "ok"
    assert host["origin"] == f"vmmcache {settings['project']['version']}"


def test_the_installed_wheel_is_what_is_imported(installed: Path, tmp_path: Path) -> None:
    script = "import vmmcache, vmmcache_host; print(vmmcache.__file__, vmmcache_host.__file__)"
    for file in run(installed / "bin" / "python", "-c", script, cwd=tmp_path).split():
        assert Path(file).is_relative_to(installed)


def test_the_installed_wheel_plans_and_measures(installed: Path, tmp_path: Path) -> None:
    # Neither needs torch, nor anything of a checkout.
    planned = json.loads(
        run(installed / "bin" / "vmmcache", "plan", "llama-3.1-8b", "--quota", "60GiB", "--json", cwd=tmp_path)
    )
    assert planned["groups"][0]["slots"] == 30720
    measured = json.loads(run(installed / "bin" / "vmmcache", "bench", "growth", "--quick", "--json", cwd=tmp_path))
    assert (measured["ok"], len(measured["benchmarks"][0]["rows"])) == (True, 6)


def test_the_installed_wheel_says_what_it_lacks(installed: Path, tmp_path: Path) -> None:
    command = (installed / "bin" / "vmmcache", "bench", "bandwidth", "--json")
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (entry,) = json.loads(child.stdout)["benchmarks"]
    assert (child.returncode, entry["status"], entry["reason"]) == (1, "unavailable", "torch is not installed")
    for arguments, extra in ((("selftest", "host"), "testing"), (("demo",), "torch")):
        command = (installed / "bin" / "vmmcache", *arguments, "--json")
        child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert re.search(rf"vmmcache\[{extra}\]|extra `{extra}`", json.loads(child.stdout)["error"]["message"])


def test_the_installed_wheel_shows_a_map(installed: Path, tmp_path: Path) -> None:
    shown = json.loads(run(installed / "bin" / "vmmcache", "map", "demo", "--json", cwd=tmp_path))
    assert [tensor["state"] for tensor in shown["tensors"]] == ["committed", "asleep"]


def test_every_dependency_is_pinned(repository: Path, settings: dict[str, Any]) -> None:
    project = settings["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["testing"], *extras["docs"], *settings["dependency-groups"]["dev"]]
    pinned = re.findall(r"^([\w.-]+)==", (repository / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert {_name(requirement) for requirement in asked} <= {_name(name) for name in pinned}


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")
