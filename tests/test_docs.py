"""The documentation is true: its code runs and gives what it says, its tables and pictures are those of the code."""

from __future__ import annotations

import ast
import importlib.util
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from vmmcache.memory.states import TRANSITIONS, Event, State

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("design/*.md")])

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GIVES = "# -> "
LINK = re.compile(r"\]\(([^)\s]+)\)")
INVARIANT = re.compile(r"^### (I\d+) · .*?$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """The page's fenced blocks of one language, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[1] == language:
            yield text.count("\n", 0, match.start(2)) + 1, match[2]


WITH_CODE = [str(page.relative_to(ROOT)) for page in PAGES if any(blocks(page, "python"))]


# Code -----------------------------------------------------------------------------------------------------------------


def checked(code: str, first_line: int, page: str) -> ast.Module:
    """The code, with each ``expression  # -> value`` made into a comparison of the two."""
    lines = code.splitlines()

    class Compare(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            _, arrow, value = lines[(node.end_lineno or 1) - 1].partition(GIVES)
            if not arrow:
                return node
            call = ast.Call(ast.Name("_gives", ast.Load()), [node.value, ast.Constant(value)], [])
            return ast.copy_location(ast.Expr(call), node)

    tree = ast.fix_missing_locations(Compare().visit(ast.parse(code, page)))
    ast.increment_lineno(tree, first_line - 1)
    assert isinstance(tree, ast.Module)
    return tree


def gives(value: object, expected: str) -> None:
    try:
        assert value == ast.literal_eval(expected)
    except ValueError:  # not a literal: a tensor, say
        assert repr(value) == expected


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_runs_and_gives_what_the_page_says(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(DOCS / "examples")
    names: dict[str, object] = {"__name__": "page", "_gives": gives}
    for first_line, code in blocks(ROOT / name, "python"):
        exec(compile(checked(code, first_line, name), name, "exec"), names)
    # Whoever pastes the code into a terminal sees no warning, but for what the code itself says was left out.
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in warnings if record.name != "vmmcache.cache.warmup"] == []


def test_the_pages_that_teach_have_code() -> None:
    assert {"README.md", "docs/quickstart.md", "docs/tensor.md", "docs/writing-a-driver.md"} <= set(WITH_CODE)


@pytest.mark.parametrize("name", WITH_CODE)
def test_every_value_that_a_page_promises_is_compared(name: str) -> None:
    # One that stands behind something else than an expression would be read by people and checked by nobody.
    for first_line, code in blocks(ROOT / name, "python"):
        compared = ast.unparse(checked(code, first_line, name)).count("_gives(")
        assert compared == code.count(GIVES), f"{name}, block at line {first_line}"


def test_a_value_that_is_not_what_the_page_says_is_noticed() -> None:
    tree = checked("try:\n    1 + 1  # -> 3\nfinally:\n    pass\n", 1, "page")
    with pytest.raises(AssertionError):
        exec(compile(tree, "page", "exec"), {"_gives": gives})


# Pictures and tables --------------------------------------------------------------------------------------------------


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, DOCS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    return script("pictures/draw.py")


@pytest.fixture(scope="module")
def cited() -> dict[str, list[str]]:
    files: dict[str, list[str]] = script("cite.py").citing()
    return files


def test_the_pictures_are_what_the_code_draws_today(draw: ModuleType) -> None:
    drawn = draw.pictures()
    for name, content in drawn.items():
        committed = (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert committed == content, f"{name} is out of date: run python docs/pictures/draw.py"
    assert {path.name for path in (DOCS / "pictures").glob("*.svg")} == set(drawn)


def test_the_picture_of_the_states_has_every_state_and_event(draw: ModuleType) -> None:
    picture = draw.states()
    for word in [state.value for state in State] + [event.value for event in Event]:
        assert re.search(rf">([^<]*, )?{word}(, [^<]*)?</text>", picture), word


def state_table() -> str:
    """The table of states as the page of invariants shows it."""
    lines = [f"| | {' | '.join(event.value for event in Event)} |", "|---" * (len(Event) + 1) + "|"]
    for state, events in TRANSITIONS.items():
        cells = [events[event].value if event in events else "–" for event in Event]  # noqa: RUF001 -- a dash is meant
        lines.append(f"| **{state.value}** | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_states_is_that_of_the_code() -> None:
    assert state_table() in (DOCS / "invariants.md").read_text(encoding="utf-8")


# Invariants -----------------------------------------------------------------------------------------------------------


def invariants() -> dict[str, str]:
    return dict(INVARIANT.findall((DOCS / "invariants.md").read_text(encoding="utf-8")))


def test_all_invariants_are_on_the_page_in_order() -> None:
    assert list(invariants()) == [f"I{number}" for number in range(1, 16)]


@pytest.mark.parametrize("key", invariants())
def test_an_invariant_names_code_that_exists_and_tests_that_cite_it(key: str, cited: dict[str, list[str]]) -> None:
    held, _, shown = invariants()[key].partition("**Shown by**")
    if "Not there yet" in held:
        assert key not in cited, f"{cited[key]} cite {key}, which the page says is not there yet"
        return
    assert "**Held by**" in held
    for module in re.findall(r"`([\w/]+(?:\.py|/))`", held):
        assert any((base / module).exists() for base in (ROOT / "vmmcache", ROOT)), module
    tests = re.findall(r"`([\w/.]+\.py)`", shown)
    assert tests, f"{key} is shown by no test"
    gone = set(tests) - set(cited.get(key, []))
    assert gone == set(), f"{gone} do not cite {key} any more: run python docs/cite.py"


def test_listing_the_tests_anew_changes_the_lists_and_nothing_else(cited: dict[str, list[str]]) -> None:
    page = "# Page\n\n### I1 · One.\n\nText.\n\n**Shown by** `gone.py`,\n`gone/too.py`.\n\n## Next\n\nText.\n"
    listed = ",\n".join(f"`{name}`" for name in cited["I1"])
    assert script("cite.py").rewritten(page) == page.replace("`gone.py`,\n`gone/too.py`", listed)


# The architecture -----------------------------------------------------------------------------------------------------


def layout() -> Iterator[Path]:
    """Every path of the tree on the architecture page."""
    ((_, tree), *_) = blocks(DOCS / "architecture.md", "text")
    above: list[tuple[int, Path]] = [(-1, ROOT)]
    for line in tree.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        name = line.split()[0]
        while above[-1][0] >= indent:
            above.pop()
        path = above[-1][1] / name
        if name.endswith("/"):
            above.append((indent, path))
        yield path


def test_everything_in_the_layout_exists() -> None:
    assert [str(path.relative_to(ROOT)) for path in layout() if not path.exists()] == []


@pytest.mark.parametrize(
    "folder",
    [f"vmmcache/{name}" for name in ("", "memory", "memory/region", "plugins", "probing", "connectors")],
)
def test_everything_of_a_folder_is_in_the_layout(folder: str) -> None:
    shown = set(layout())
    there = {path for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    missing = there - shown - {ROOT / folder / name for name in ("__init__.py", "__main__.py")}
    assert sorted(path.name for path in missing) == []


def test_every_driver_and_plug_in_is_in_the_layout() -> None:
    there = {path.parent for folder in ("drivers", "plugins") for path in (ROOT / folder).glob("*/__init__.py")}
    assert there <= set(layout())


# Links ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not target.startswith(("https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_every_decision_says_what_was_rejected() -> None:
    decisions = sorted((DOCS / "design").glob("*.md"))
    numbers = [int(path.name[:4]) for path in decisions]
    assert len(set(numbers)) == len(numbers) >= 8
    for number, path in zip(numbers, decisions, strict=True):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. ")
        parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert set(parts) >= {"Context", "Decision", "Rejected", "Consequences"}, path.name
