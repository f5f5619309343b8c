"""Commands on all pages are true: those that can be run here are run, the others name what exists (U7).

Which command is of which kind is said by its first word. One that is of no kind fails, so that none goes unread. The
page of the command line, whose output is compared as a whole, has tests of its own.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("design/*.md")])
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
# Blocks of commands are console ones, with a prompt, and plain ones. These others have tests of their own.
OTHERS = ("python", "text", "toml")
PROMPT = "$ "
FIRST = ("vmmcache", "python", "pip", "make", "eval", "_VMMCACHE_COMPLETE=")
PLACEHOLDER = re.compile(r"[A-Z]+|PID|\.\.\.")


class Command(NamedTuple):
    page: str
    line: str
    output: str | None = None
    """What the page shows that it prints, if it does."""


def commands() -> Iterator[Command]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = str(page.relative_to(ROOT))
        for language, block in FENCE.findall(text):
            if language == "console":
                first, *rest = block.splitlines()
                assert first.startswith(PROMPT), f"{name}: {first}"
                yield Command(name, first.removeprefix(PROMPT), "\n".join(rest))
            elif language == "" and block.startswith(FIRST):
                for line in block.splitlines():
                    yield Command(name, line.partition("  #")[0].partition(" # ")[0].strip())
        for code in INLINE.findall(FENCE.sub("", text)):
            words = code.split()
            if len(words) > 1 and (words[0] in ("vmmcache", "make", "pip") or re.match(r"python \S+\.py", code)):
                yield Command(name, code)


def of(word: str) -> list[Command]:
    """Each command once, with the first page that has it."""
    return list({command.line: command for command in commands() if command.line.startswith(word)}.values())


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


@cache
def help_of(*command: str) -> str:
    child = run(*command, "--help")
    assert child.returncode == 0, child.stderr
    return child.stdout


def lacking(arguments: list[str], text: str) -> list[str]:
    """Options among the arguments that a help does not have."""
    options = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    return sorted(option for option in options - {"--help"} if not re.search(rf"{option}\b", text))


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    # Plain ones hold commands and nothing else: code without its language would be run by nobody.
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
            if language == "":
                assert block.startswith(FIRST), f"{page.name}: {block}"
            else:
                assert language in ("console", *OTHERS) or language.startswith("{"), f"{page.name}: {language}"
    for command in commands():
        assert command.line.startswith(FIRST), f"{command.page}: {command.line}"
    assert len(of("vmmcache")) > 12


@pytest.mark.parametrize("command", of("vmmcache"), ids=lambda command: command.line)
def test_vmmcache_commands_exist_with_their_options(command: Command) -> None:
    name, *arguments = shlex.split(command.line)[1:]
    if name.startswith("--"):
        assert lacking([name], help_of(sys.executable, "-m", "vmmcache")) == []
    elif not PLACEHOLDER.fullmatch(name):
        assert lacking(arguments, help_of(sys.executable, "-m", "vmmcache", name)) == []


# Run as they stand: those that take a moment and are the same on every machine. Devices that are not here are left out.
RUN = [
    command
    for command in [*of("vmmcache plan"), *of("vmmcache --version"), *of("vmmcache probe --driver pool")]
    if not set(command.line.split()) & {"--help", "FILE"}
]


@pytest.mark.parametrize(
    "command",
    [
        *(command for command in RUN if len(command.line.split()) > 2 or "-" in command.line),
        *of("vmmcache selftest pool"),
    ],
    ids=str,
)
def test_commands_that_can_be_run_here_are_run(command: Command) -> None:
    # The page of drivers says to put its example on Python's path.
    environment = {"COLUMNS": "88"} | ({"PYTHONPATH": str(DOCS / "examples")} if "pool" in command.line else {})
    child = run(sys.executable, "-m", "vmmcache", *shlex.split(command.line)[1:], **environment)
    assert child.returncode == 0, child.stderr
    if command.output:
        assert child.stdout.split() == command.output.split()


@pytest.mark.parametrize("command", of("python "), ids=lambda command: command.line)
def test_scripts_exist_and_take_their_arguments(command: Command) -> None:
    _, script, *arguments = shlex.split(command.line)
    if script == "-m":
        return
    assert (ROOT / script).is_file()
    if script.startswith("examples/") and hasattr(module := importlib.import_module(Path(script).stem), "parse"):
        module.parse(arguments)
    elif any(argument.startswith("--") for argument in arguments):
        assert lacking(arguments, help_of(sys.executable, script)) == []


def test_make_knows_every_target() -> None:
    listed = re.findall(r"^  make (\w+)", run("make", "help").stdout, re.MULTILINE)
    assert listed
    for command in of("make "):
        words = shlex.split(command.line)[1:]
        targets = [word for word in words if "=" not in word]
        assert set(targets) <= {*listed, "help"}, f"{command.page}: {command.line}"
        for variable in (word.partition("=")[0] for word in words if "=" in word):
            assert f"{variable} ?=" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_extra_that_is_named_exists_and_has_its_row_on_the_page_of_installation() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for command in of("pip install"):
        for names in re.findall(r"\[([\w,]+)\]", command.line):
            assert set(names.split(",")) <= set(extras), f"{command.page}: {command.line}"
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(extras)


def test_the_line_for_bash_makes_bash_complete() -> None:
    (line,) = of("eval")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    child = run("bash", "--norc", "-c", f"set -e; {line.line}; complete -p vmmcache", PATH=path)
    assert child.returncode == 0, child.stderr
    assert child.stdout.endswith(" vmmcache\n")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    child = run(sys.executable, "-m", "vmmcache", _VMMCACHE_COMPLETE=f"{shell}_source")
    assert child.returncode == 0, child.stderr
    assert "_VMMCACHE_COMPLETE" in child.stdout


@pytest.mark.parametrize(
    ("typed", "expected"),
    [(("pr",), ["probe"]), (("plan", "--quo"), ["--quota"]), (("probe", "--d"), ["--driver", "--device"])],
)
def test_commands_and_options_are_completed(typed: tuple[str, ...], expected: list[str]) -> None:
    words = {"COMP_WORDS": " ".join(("vmmcache", *typed)), "COMP_CWORD": str(len(typed))}
    child = run(sys.executable, "-m", "vmmcache", _VMMCACHE_COMPLETE="bash_complete", **words)
    assert [line.partition(",")[2] for line in child.stdout.splitlines()] == expected
