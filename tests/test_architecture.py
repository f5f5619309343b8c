"""docs/architecture.md stays true: who may import whom.

Each rule is a function from parsed sources to complaints. Each is tested on the project, and on a planted violation, so
that a rule that has gone blind is noticed. What a module may *do* is in test_architecture_calls.py, what is public in
test_public_names.py.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

Sources = Mapping[str, ast.Module]
Rule = Callable[[Sources, Sources], list[str]]

# Who may import whom, by names below vmmcache. "x.*" is every module of the package x, any other row is one module, and
# "vmmcache" is the front door, which hands out names of all layers. A module without a row fails: a new one is given
# its place here and on the page.
L0 = "errors units fds quirks host_memory closing transitions"
L4 = f"{L0} handles driver spec metrics.* plugins.* memory.* planning.* connectors.* sharing.* probing.* cache.*"
L5 = f"vmmcache {L4} models.*"
MAY_IMPORT = {
    "__init__": L4,
    "__main__": "cli.*",
    "errors": "",
    "units": "errors",
    "fds": "errors units",
    "quirks": "errors units",
    "host_memory": "errors units",
    "closing": "errors",
    "transitions": "errors",
    # L1
    "places": L0,
    "handles": "units",
    "driver": f"{L0} handles places",
    "spec": f"{L0} driver",
    "planning.*": "errors units planning.*",
    "memory.__init__": "",
    "memory.undo": L0,
    "memory.states": L0,
    "memory.ranges": L0,
    "memory.segments": f"{L0} memory.ranges",
    "memory.dlpack": L0,
    "memory.contents": f"{L0} memory.ranges memory.segments",
    "memory.views": L0,
    "memory.descriptors": f"{L0} driver",
    "metrics.*": f"{L0} metrics.*",
    # L2
    "plugins.*": f"{L0} driver spec connectors.* plugins.*",
    "memory.region.*": f"{L0} driver memory.undo memory.states memory.ranges metrics.* memory.region.*",
    "connectors.__init__": "",
    "connectors.leases": L0,
    # L3
    "memory.lifetime": f"{L0} memory.region.* memory.states memory.dlpack",
    "memory.segmented": f"{L0} memory.region.* memory.states memory.ranges memory.segments memory.descriptors",
    "memory.changes": f"{L0} memory.states memory.ranges",
    "memory.exports": L0,
    "memory.atlas.*": f"{L0} driver metrics.* connectors.leases memory.*",
    "memory.visible": f"{L0} driver memory.*",
    "memory.touchable": f"{L0} memory.*",
    "memory.connectable": f"{L0} driver connectors.leases memory.*",
    "memory.tensor": f"{L0} driver plugins.* connectors.leases memory.*",
    "probing.*": f"{L0} driver spec plugins.* probing.*",
    # L4
    "connectors.nixl": f"{L0} memory.descriptors plugins.* connectors.*",
    "connectors.layouts": L0,
    "connectors.nixl_plugin": f"{L0} plugins.* connectors.*",
    "connectors.nixl_library": f"{L0} connectors.nixl_plugin",
    "connectors.mooncake_plugin": f"{L0} plugins.* connectors.*",
    "connectors.mooncake": f"{L0} memory.descriptors plugins.* connectors.*",
    "connectors.*": f"{L0} driver memory.descriptors memory.undo connectors.*",
    "sharing.*": f"{L0} driver plugins.* connectors.leases memory.* sharing.*",
    "cache.*": L4,
    # L5
    "models.*": L0,
    "demo.*": f"{L5} demo.*",
    "integrations.*": f"{L5} integrations.*",
    "benchmarks.*": f"{L5} integrations.* benchmarks.*",
    "cli.*": f"{L5} demo.* integrations.* benchmarks.* cli.*",
    "testing.*": f"{L5} places testing.*",
}
DRIVER_MAY_IMPORT = f"vmmcache {L0} handles places driver spec"

# Packages of others: (wherever wanted, only where the import waits: in a function, or for a type checker).
THIRD_PARTY = {
    "vmmcache.plugins.*": ("pluggy", ""),
    "vmmcache.connectors.mooncake": ("", "mooncake"),
    "vmmcache.memory.tensor": ("", "torch"),
    "vmmcache.memory.visible": ("", "torch"),
    "vmmcache.sharing.*": ("", "torch"),
    "vmmcache.memory.views": ("", "torch"),
    "vmmcache.cache.*": ("", "torch"),
    "vmmcache.demo.*": ("torch", ""),
    "vmmcache.benchmarks.*": ("torch transformers", ""),
    "vmmcache.integrations.prometheus": ("prometheus_client", ""),
    "vmmcache.integrations.*": ("torch transformers", ""),
    "vmmcache.cli.*": ("click rich", "torch"),
    "vmmcache.testing.*": ("pytest hypothesis", "torch"),
    "vmmcache_cuda.*": ("", "cuda"),
    "vmmcache_hip.*": ("", "hip rocm"),
}

# Planning is a function of its arguments: no clock, environment, device, or chance.
IMPURE = {"ctypes", "datetime", "logging", "os", "random", "secrets", "subprocess", "threading", "time"}


class Import(NamedTuple):
    """One name that a module imports; `name` is None where it imports the whole of `target`."""

    module: str
    line: int
    target: str
    name: str | None
    waits: bool

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}" + (f".{self.name}" if self.name else "")


def imports(sources: Sources, modules: Sources) -> Iterator[Import]:
    """Every import in `sources`; `modules` tells a module from any other name in ``from package import name``."""
    for module, tree in sources.items():
        waiting = {id(inner) for node in ast.walk(tree) if _runs_later(node) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            for target, name in _targets(module, node):
                whole = f"{target}.{name}"
                if {whole, f"{whole}.__init__"} & modules.keys():
                    yield Import(module, getattr(node, "lineno", 0), whole, None, id(node) in waiting)
                else:
                    yield Import(module, getattr(node, "lineno", 0), target, name, id(node) in waiting)


def _runs_later(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _targets(module: str, node: ast.AST) -> Iterator[tuple[str, str | None]]:
    match node:
        case ast.Import(names=names):
            yield from ((alias.name, None) for alias in names)
        case ast.ImportFrom(module=base, names=names, level=level):
            above = module.split(".")[:-level] if level else []
            target = ".".join([*above, *([base] if base else [])])
            yield from ((target, alias.name) for alias in names)
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(target)), *_],
        ):
            yield target, None


def covering(rows: str | Mapping[str, object], module: str) -> str | None:
    """The first of `rows` that stands for `module`."""
    for row in rows.split() if isinstance(rows, str) else rows:
        package = row.removesuffix(".*")
        if module == row or (row != package and f"{module}.".startswith(f"{package}.")):
            return row
    return None


def below_vmmcache(module: str) -> str:
    return module.removeprefix("vmmcache.")


def against_the_layers(sources: Sources, modules: Sources) -> list[str]:
    complaints = [
        f"{module} has no row in MAY_IMPORT"
        for module in sources
        if module.startswith("vmmcache.") and covering(MAY_IMPORT, below_vmmcache(module)) is None
    ]
    for found in imports(sources, modules):
        if found.package != "vmmcache":
            continue
        row = covering(MAY_IMPORT, below_vmmcache(found.module))
        allowed = DRIVER_MAY_IMPORT if not found.module.startswith("vmmcache.") else MAY_IMPORT[row] if row else ""
        if covering(allowed, below_vmmcache(found.target)) is None:
            complaints.append(str(found))
    return complaints


def against_third_parties(sources: Sources, modules: Sources) -> list[str]:
    ours = {module.partition(".")[0] for module in modules}
    complaints = []
    for found in imports(sources, modules):
        if found.package in ours | sys.stdlib_module_names:
            continue
        row = covering(THIRD_PARTY, found.module)
        anywhere, waiting = THIRD_PARTY[row] if row else ("", "")
        if found.package not in anywhere.split() + (waiting.split() if found.waits else []):
            complaints.append(str(found))
    return complaints


def against_purity(sources: Sources, modules: Sources) -> list[str]:
    planning = {module: tree for module, tree in sources.items() if module.startswith("vmmcache.planning.")}
    return [str(found) for found in imports(planning, modules) if found.package in IMPURE]


def against_driver_packages(sources: Sources, modules: Sources) -> list[str]:
    """vmmcache imports no driver, and no driver another."""
    drivers = {module.partition(".")[0] for module in modules} - {"vmmcache"}
    return [
        str(found) for found in imports(sources, modules) if found.package in drivers - {found.module.partition(".")[0]}
    ]


def against_testing(sources: Sources, modules: Sources) -> list[str]:
    return [
        str(found)
        for found in imports(sources, modules)
        if covering("vmmcache.testing.*", f"{found.target}.{found.name}")
        and not covering("vmmcache.testing.*", found.module)
    ]


def against_private_names(sources: Sources, modules: Sources) -> list[str]:
    """A driver package takes single names of vmmcache, each of them in the `__all__` of where it takes it from."""
    complaints = []
    for found in imports(sources, modules):
        if found.package == "vmmcache" and not found.module.startswith("vmmcache."):
            tree = modules.get(found.target) or modules.get(f"{found.target}.__init__")
            if tree is None or found.name not in public_names(tree):
                complaints.append(str(found))
    return complaints


def public_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return [str(name) for name in ast.literal_eval(value)]
    return []


RULES: Mapping[Rule, Mapping[str, str]] = {
    against_the_layers: {
        "vmmcache.planning.fit": "from vmmcache.driver import VmmDriver",
        "vmmcache.memory.region": "from vmmcache.memory import tensor",
        "vmmcache.memory.states": "from .region import Region",
        "vmmcache.driver": "import vmmcache",
        "vmmcache.probing.steps": "def f():\n    importlib.import_module('vmmcache.cli')",
        "vmmcache.novelty": "",
        "vmmcache_host._driver": "from vmmcache.memory.region import Region",
    },
    against_third_parties: {
        "vmmcache.memory.tensor": "import torch",
        "vmmcache.memory.region": "def f():\n    import torch.cuda",
        "vmmcache.units": "from numpy import int64",
        "vmmcache.probing": "import rich",
    },
    against_purity: {"vmmcache.planning.fit": "import time", "vmmcache.planning.models": "from os import environ"},
    against_driver_packages: {
        "vmmcache.plugins.host": "import vmmcache_host",
        "vmmcache.cli.probe": "__import__('vmmcache_host._driver')",
        "vmmcache_hip._api": "from vmmcache_host import _libc",
    },
    against_testing: {
        "vmmcache.cli.demo": "from vmmcache.testing import DriverConformance",
        "vmmcache_host": "from vmmcache import testing",
    },
    against_private_names: {
        "vmmcache_host.a": "from vmmcache.driver import GRANULE_FLOOR",
        "vmmcache_host.b": "from vmmcache import units",
        "vmmcache_host.c": "import vmmcache.errors",
        "vmmcache_host.d": "from vmmcache.driver import *",
    },
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps(rule: Rule, sources: Sources) -> None:
    assert rule(sources, sources) == []


@pytest.mark.parametrize(
    ("rule", "module", "planted"),
    [
        pytest.param(rule, module, planted, id=f"{rule.__name__}-{module}")
        for rule, violations in RULES.items()
        for module, planted in violations.items()
    ],
)
def test_a_planted_violation_is_found(rule: Rule, module: str, planted: str, sources: Sources) -> None:
    planted_sources = {module: ast.parse(planted)}
    assert len(rule(planted_sources, {**planted_sources, **sources})) == 1


def test_every_row_of_the_table_is_a_place_that_other_rows_may_name() -> None:
    rows = {*MAY_IMPORT, "vmmcache", "memory.*", "connectors.*"}
    assert {row for rows_ in MAY_IMPORT.values() for row in rows_.split()} <= rows
