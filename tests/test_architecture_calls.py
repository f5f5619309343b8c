"""docs/architecture.md stays true: what a module may do. Some call a driver, one catches everything, few print.

As in test_architecture.py, each rule is a function from parsed sources to complaints, tested on the project and on
planted violations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping

import pytest

Sources = Mapping[str, ast.Module]
Rule = Callable[[Sources], list[str]]

# VmmDriver's methods, all of them: those that touch addresses, memory or its contents, and those that only ask or wait.
MEMORY_VERBS = {
    *("reserve", "free", "create", "release", "map", "grant", "unmap"),
    *("zero", "copy", "read", "write", "export_handle", "import_handle", "export_dmabuf"),
}
QUESTIONS = {
    *("device", "dlpack_device", "torch_device", "granularity", "memory_info"),
    *("held", "current", "check_process", "check_not_capturing", "synchronise"),
}

# The conformance suite in `testing` exists to call the verbs.
MAY_CALL_A_DRIVER = r"vmmcache\.(memory\.region(\..*)?|probing\.steps|testing\..*)"
# A stranger's plug-in, a stranger's callback, and a stranger's connector: each may raise anything, and each is shown
# with what it raised.
MAY_CATCH_EVERYTHING = (
    *("vmmcache.plugins.host", "vmmcache.connectors.leases", "vmmcache.connectors.strange"),
    "vmmcache.memory.changes",  # an observer is a callback of a stranger's, too
)
MAY_PRINT = r"vmmcache\.(cli\..*|probing\.child|testing\.selftest)"


def calls_of_memory_verbs(sources: Sources) -> list[str]:
    """Uses of a driver's memory verbs. What is a driver is told by its name, annotation, or where it comes from."""
    complaints = []
    for module, tree in sources.items():
        # Driver packages are left out: what they call `driver` is a vendor's binding.
        if not module.startswith("vmmcache.") or re.fullmatch(MAY_CALL_A_DRIVER, module):
            continue
        names = drivers_by_name(tree)
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=owner, attr=verb) if verb in MEMORY_VERBS and is_driver(owner, names):
                    complaints.append(f"{module}:{node.lineno} {ast.unparse(node)}")
                case ast.Call(func=ast.Name(id="getattr"), args=[owner, verb, *_]) if is_driver(owner, names):
                    # A verb by its name, or by a name that cannot be seen here.
                    if not (isinstance(verb, ast.Constant) and verb.value not in MEMORY_VERBS):
                        complaints.append(f"{module}:{node.lineno} {ast.unparse(node)}")
    return complaints


def drivers_by_name(tree: ast.Module) -> set[str]:
    """Names of variables, parameters and attributes that hold a driver, followed through assignments."""
    names: set[str] = set()
    while True:
        found = {name for node in ast.walk(tree) for name in _bound_to_driver(node, names)}
        if found <= names:
            return names
        names |= found


def _bound_to_driver(node: ast.AST, names: set[str]) -> Iterator[str]:
    match node:
        case ast.arg(arg=name, annotation=ast.expr() as kind) if "VmmDriver" in ast.unparse(kind):
            yield name
        case ast.AnnAssign(target=target, annotation=kind) if "VmmDriver" in ast.unparse(kind):
            yield from _name(target)
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
            | ast.withitem(optional_vars=ast.expr() as target, context_expr=value)
        ) if is_driver(value, names):
            yield from _name(target)
        case ast.Assign(targets=targets, value=value) if is_driver(value, names):
            for target in targets:
                yield from _name(target)


def _name(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name


def is_driver(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names or name == "VmmDriver" or name.strip("_").split("_")[-1] == "driver"
        case ast.Call(func=ast.Name(id="open_driver") | ast.Attribute(attr="open_driver")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="spec") | ast.Attribute(attr="spec"), attr="open")):
            return True
        case ast.Call(func=ast.Name(id="cast"), args=[_, value]) | ast.NamedExpr(value=value):
            return is_driver(value, names)
        case ast.IfExp(body=one, orelse=other):
            return is_driver(one, names) or is_driver(other, names)
        case ast.BoolOp(values=values):
            return any(is_driver(value, names) for value in values)
    return False


def broad_catches(sources: Sources) -> list[str]:
    complaints = []
    for module, tree in sources.items():
        for node in ast.walk(tree):
            match node:
                case ast.ExceptHandler(type=None):
                    complaints.append(f"{module}:{node.lineno} a bare except")
                case ast.ExceptHandler(type=ast.expr() as kind) if _is_broad(kind):
                    complaints.append(f"{module}:{node.lineno} except {ast.unparse(kind)}")
                case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=kinds) if any(
                    map(_is_broad, kinds)
                ):
                    complaints.append(f"{module}:{node.lineno} {ast.unparse(node)}")
    return complaints


def _is_broad(kind: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id in {"Exception", "BaseException", "BaseExceptionGroup", "ExceptionGroup"}
        for node in ast.walk(kind)
    )


def catches_outside_the_plugin_host(sources: Sources) -> list[str]:
    return broad_catches({module: tree for module, tree in sources.items() if module not in MAY_CATCH_EVERYTHING})


def printing(sources: Sources) -> list[str]:
    complaints = []
    for module, tree in sources.items():
        if re.fullmatch(MAY_PRINT, module):
            continue
        # To lead what strangers print away from standard output is the opposite of printing.
        led_away = {
            id(call.args[0])
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and ast.unparse(call) == "contextlib.redirect_stdout(sys.stderr)"
        }
        for node in ast.walk(tree):
            match node:
                case ast.AST() if id(node) in led_away:
                    continue
                case (
                    ast.Name(id="print")
                    | ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__")
                ):
                    complaints.append(f"{module}:{node.lineno} {ast.unparse(node)}")
    return complaints


RULES: Mapping[Rule, Mapping[str, str]] = {
    calls_of_memory_verbs: {
        "vmmcache.cache.manager": "self._driver.unmap(mapping)",
        "vmmcache.memory.tensor": "def f(device: VmmDriver | None):\n    device.create(1)",
        "vmmcache.demo.engine": "with_memory = open_driver('host').reserve(1)",
        "vmmcache.cli.probe": "lower = a.driver\nother = lower\nother.zero(0, 1)",
        "vmmcache.connectors.registration": "give_back = self.region.driver.release",
        "vmmcache.cache.sizing": "getattr(driver, 'map')(1)",
        "vmmcache.cache.ranks": "getattr(driver, verb)(1)",
        "vmmcache.cache.slots": "VmmDriver.free(anything, 1)",
        "vmmcache.probing.report": "(found.spec.open(0) if found else backup).export_dmabuf(1, 2)",
    },
    catches_outside_the_plugin_host: {
        "vmmcache.memory.region": "try: f()\nexcept Exception: pass",
        "vmmcache.memory.undo": "try: f()\nexcept (OSError, BaseException) as error: g(error)",
        "vmmcache_host._driver": "try: f()\nexcept: raise",
        "vmmcache.probing.steps": "with contextlib.suppress(Exception): f()",
    },
    printing: {
        "vmmcache.memory.tensor": "print('grown')",
        "vmmcache.probing.steps": "say = print",
        "vmmcache_host._survey": "sys.stderr.write('grown')",
    },
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_is_free_of(rule: Rule, sources: Sources) -> None:
    assert rule(sources) == []


@pytest.mark.parametrize(
    ("rule", "module", "planted"),
    [
        pytest.param(rule, module, planted, id=f"{rule.__name__}-{module}")
        for rule, violations in RULES.items()
        for module, planted in violations.items()
    ],
)
def test_a_planted_violation_is_found(rule: Rule, module: str, planted: str) -> None:
    assert len(rule({module: ast.parse(planted)})) == 1


@pytest.mark.parametrize("module", MAY_CATCH_EVERYTHING)
def test_what_may_catch_everything_does_so_in_one_place(sources: Sources, module: str) -> None:
    assert len(broad_catches({module: sources[module]})) == 1


def test_every_method_of_a_driver_is_known_to_these_rules(sources: Sources) -> None:
    (driver,) = (
        node for node in sources["vmmcache.driver"].body if isinstance(node, ast.ClassDef) and node.name == "VmmDriver"
    )
    methods = {node.name for node in driver.body if isinstance(node, ast.FunctionDef)}
    assert {name for name in methods if not name.startswith("_")} == MEMORY_VERBS | QUESTIONS


@pytest.mark.parametrize("package", ["vmmcache.memory.region", "vmmcache.probing.steps"])
def test_those_who_may_call_a_driver_do(package: str, sources: Sources) -> None:
    # Under another name, so that the exemption is off: the rule sees the calls that are really there.
    callers = {
        f"vmmcache.elsewhere.{name}": tree for name, tree in sources.items() if f"{name}.".startswith(f"{package}.")
    }
    assert calls_of_memory_verbs(callers) != []
