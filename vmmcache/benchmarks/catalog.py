"""Which benchmarks there are: those that are shipped, and those in folders that somebody names.

None is imported here. What it is called and what it needs is read from its source.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vmmcache.errors import ConfigError

__all__ = ["ALL", "Benchmark", "chosen", "find", "shipped"]

ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A file with a function `measure`."""

    name: str
    path: Path
    title: str
    needs: tuple[str, ...]

    def missing(self) -> tuple[str, ...]:
        """Packages that it needs and that are not here."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


def shipped() -> dict[str, Benchmark]:
    """Those of this package, by name."""
    return {found.name: found for found in _in(Path(__file__).parent)}


def find(folders: Iterable[Path] = ()) -> dict[str, Benchmark]:
    """All there are, by name. One of a folder stands in for a shipped one of its name.

    Raises
    ------
    ConfigError
        Something is no folder, or has no benchmark in it.
    """
    found = shipped()
    for folder in folders:
        there = list(_in(folder)) if folder.is_dir() else []
        if not there:
            raise ConfigError("--with", str(folder), "must be a folder with Python files that define measure()")
        found |= {each.name: each for each in there}
    return dict(sorted(found.items()))


def chosen(names: Iterable[str], there: dict[str, Benchmark]) -> list[Benchmark]:
    """Those of these names; all, where there is no name or one is ``all``.

    Raises
    ------
    ConfigError
        There is none of such a name.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        if name != ALL and name not in there:
            raise ConfigError("NAME", name, f"there is no such benchmark; there are {', '.join(there)}, and {ALL}")
    return list(there.values()) if not names or ALL in names else [there[name] for name in names]


def _in(folder: Path) -> Iterator[Benchmark]:
    for path in sorted(folder.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "def measure" not in source:
            continue
        tree = ast.parse(source, str(path))
        if any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in tree.body):
            constants = dict(_constants(tree))
            sentence = (ast.get_docstring(tree) or path.stem).partition("\n")[0].rstrip(".")
            yield Benchmark(path.stem, path, str(constants.get("TITLE", sentence)), tuple(constants.get("NEEDS", ())))


def _constants(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...] | str]]:
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case _:
                continue
        if name in ("TITLE", "NEEDS") and not isinstance(value, ast.JoinedStr):
            yield name, ast.literal_eval(value)
