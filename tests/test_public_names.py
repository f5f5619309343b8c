"""What the package offers: public names that exist, an import that costs nothing, drivers that are really shipped."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import vmmcache
from vmmcache import planning

Sources = Mapping[str, ast.Module]

HEAVY = ("torch", "numpy", "ctypes", "cuda", "hip", "pluggy", "click", "rich", "importlib.metadata")


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def driver_folders(repository: Path) -> set[str]:
    return {path.parent.name for path in (repository / "drivers").glob("*/__init__.py")}


def test_every_name_in_an_all_exists(sources: Sources) -> None:
    missing = []
    for name in sources:
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name.removesuffix(".__init__"))
        public = getattr(module, "__all__", [])
        missing += [f"{name}.{public_name}" for public_name in public if not hasattr(module, public_name)]
        assert len(set(public)) == len(public), f"{name}.__all__ lists a name twice"
    assert missing == []


def test_the_front_door_lists_its_names_in_order() -> None:
    # Constants, then classes, then functions: the order that ruff keeps everywhere else.
    assert vmmcache.__all__ == sorted(vmmcache.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))


def test_the_front_door_opens_to_every_name_and_to_no_other() -> None:
    for name in vmmcache.__all__:
        assert getattr(vmmcache, name) is not None
        assert name in dir(vmmcache)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = vmmcache.no_such_name


def test_the_version_is_that_of_the_distribution() -> None:
    assert vmmcache.__version__ == version("vmmcache")


def test_type_checkers_see_the_names_that_the_front_door_resolves(sources: Sources) -> None:
    seen = {
        alias.name
        for node in ast.walk(sources["vmmcache.__init__"])
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vmmcache.")
        for alias in node.names
    }
    assert seen == set(vmmcache.__all__)


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = "import json, sys; import vmmcache; print(json.dumps(sorted(sys.modules)))"
    # Isolated: what this process's environment would preload is not what is measured.
    child = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    loaded = json.loads(child.stdout)
    assert "vmmcache" in loaded
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{heavy}." for heavy in HEAVY))] == []


def test_every_driver_folder_is_an_entry_point(settings: dict[str, Any], driver_folders: set[str]) -> None:
    drivers = {f"vmmcache_{name}": module for name, module in settings["project"]["entry-points"]["vmmcache"].items()}
    assert {name: drivers.get(name) for name in driver_folders} == {name: name for name in driver_folders}


def test_every_driver_folder_is_a_package_of_the_wheel(settings: dict[str, Any], driver_folders: set[str]) -> None:
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {"vmmcache", *(f"drivers/{name}" for name in driver_folders)} <= set(packages)


def test_every_package_of_the_wheel_is_a_folder_and_every_entry_point_a_package(
    repository: Path, settings: dict[str, Any]
) -> None:
    # A path that is misspelt here builds a wheel without that package, and without a warning.
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [package for package in packages if not (repository / package / "__init__.py").is_file()] == []
    entries = set(settings["project"]["entry-points"]["vmmcache"].values())
    # The doors of our connectors are modules of vmmcache itself; each imports its library when it is opened.
    ours = {f"vmmcache.connectors.{name}_plugin" for name in ("mooncake", "nixl")}
    assert entries == {Path(package).name for package in packages} - {"vmmcache"} | ours


def test_every_part_of_the_package_stands_on_the_architecture_page(repository: Path, sources: Sources) -> None:
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    parts = {".".join(name.split(".")[1:3]) for name in sources if name.startswith("vmmcache.")}
    files = {f"{part.partition('.')[0]}/" if "." in part else f"{part}.py" for part in parts - {"__init__", "__main__"}}
    assert [file for file in sorted(files) if not re.search(rf"^ +{re.escape(file)}(\s|$)", page, re.MULTILINE)] == []


def test_what_a_caller_has_to_make_is_public() -> None:
    """Types that documented parameters of public names are of: here, or with everything else of the planner's."""
    public = {*vmmcache.__all__, *planning.__all__}
    # Python's and torch's; a protocol, which is kept without its name; a name for plain tuples.
    public |= {"None", "Fraction", "ProcessGroup", "Store", "SlotMover", "Copy"}
    hidden: dict[str, str] = {}
    for name in (*vmmcache.__all__, *planning.__all__):
        thing = getattr(vmmcache, name, None) or getattr(planning, name)
        parts = (thing, *(getattr(thing, each) for each in dir(thing) if not each.startswith("_")))
        for text in (inspect.getdoc(part) or "" for part in parts if callable(part)):
            section = re.search(r"Parameters\n-+\n(.*?)(\n\n[A-Z]\w+\n-+\n|\Z)", text, re.DOTALL)
            kinds = re.findall(r"^\w[\w, ]* : (.*?)(?:, default.*)?$", section[1], re.MULTILINE) if section else []
            hidden |= {kind: name for kind in re.findall(r"\b[A-Z][a-z]\w+", " ".join(kinds)) if kind not in public}
    assert hidden == {}


def test_every_public_name_is_in_the_api_reference(repository: Path) -> None:
    page = (repository / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\.\. (?:auto\w+|py:\w+):: (\w+)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(vmmcache.__all__)
