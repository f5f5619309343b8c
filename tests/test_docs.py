"""The documentation is true: its code runs and gives what it says, its tables and pictures are those of the code."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from vmmcache.memory.states import TRANSITIONS, Event

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("design/*.md")])
WITH_CODE = ["README.md", "docs/quickstart.md", "docs/tensor.md", "docs/writing-a-driver.md"]

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GIVES = "# -> "


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """The page's fenced blocks of one language, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[1] == language:
            yield text.count("\n", 0, match.start(2)) + 1, match[2]


def checked(code: str, first_line: int, page: str) -> ast.Module:
    """The code, with each ``expression  # -> value`` made into a comparison of the two."""
    lines = code.splitlines()
    tree = ast.parse(code, page)

    class Compare(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            _, arrow, value = lines[(node.end_lineno or 1) - 1].partition(GIVES)
            if not arrow:
                return node
            call = ast.Call(ast.Name("_gives", ast.Load()), [node.value, ast.Constant(value)], [])
            return ast.copy_location(ast.Expr(call), node)

    tree = ast.fix_missing_locations(Compare().visit(tree))
    return ast.increment_lineno(tree, first_line - 1)


def gives(value: object, expected: str) -> None:
    assert repr(value) == expected


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_runs_and_gives_what_the_page_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "examples")
    names: dict[str, object] = {"__name__": "page", "_gives": gives}
    page = ROOT / name
    found = list(blocks(page, "python"))
    assert found, f"{name} has no code"
    for first_line, code in found:
        exec(compile(checked(code, first_line, name), name, "exec"), names)


@pytest.mark.parametrize("name", WITH_CODE)
def test_every_expected_value_on_a_page_is_compared(name: str) -> None:
    # One that stands behind something else than an expression would be read by people and checked by nobody.
    for first_line, code in blocks(ROOT / name, "python"):
        compared = ast.unparse(checked(code, first_line, name)).count("_gives(")
        assert compared == code.count(GIVES), f"{name}, block at line {first_line}"
