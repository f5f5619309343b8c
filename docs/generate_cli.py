"""Writes what commands print into docs/cli.md, by running them.

``python docs/generate_cli.py`` runs every command that the page shows; names of commands as arguments, only those.
``bench`` wants a machine that does nothing else. tests/test_docs_commands.py runs them too, and sees that nothing but
numbers has changed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

__all__ = ["rewritten"]

PAGE: Final = Path(__file__).parent / "cli.md"
BLOCK: Final = re.compile(r"^(```console\n\$ vmmcache ([^\n]*)\n).*?(^```$)", re.MULTILINE | re.DOTALL)
WIDTH: Final = 88
SHOWN: Final = {"selftest": (6, 4)}
"""Of some commands only the first and the last lines are shown."""


def rewritten(page: str, names: Collection[str] = ()) -> str:
    """The page with what its commands print now."""

    def block(match: re.Match[str]) -> str:
        arguments = shlex.split(match[2])
        return match[0] if names and arguments[0] not in names else f"{match[1]}{_output(arguments)}{match[3]}"

    return BLOCK.sub(block, page)


def _output(arguments: list[str]) -> str:
    child = subprocess.run(
        [sys.executable, "-m", "vmmcache", *arguments],
        env=os.environ | {"COLUMNS": str(WIDTH)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [line.rstrip() for line in child.stdout.rstrip().splitlines()]
    if arguments[0] in SHOWN:
        first, last = SHOWN[arguments[0]]
        lines[first:-last] = ["..."]
    return _without_suffix("\n".join(lines)) + "\n"


def _without_suffix(text: str) -> str:
    """Leave out what a distribution adds to the kernel's version; columns behind it stay where they are."""

    def version(match: re.Match[str]) -> str:
        return match[1] + " " * (len(match[2]) if match[3] else 0) + match[3]

    return re.sub(r"\b(Linux \d+\.\d+\.\d+)([^\s,]*)( *)", version, text)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), sys.argv[1:]), encoding="utf-8")
