"""U7: the worked example of docs/sizing.md is what the command on the page prints, digit for digit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "sizing.md").read_text(encoding="utf-8")


def test_the_worked_example_is_what_its_command_prints(repository: Path, page: str) -> None:
    shown = re.search(r"```console\n\$ python (docs/examples/sizing\.py)\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    child = subprocess.run([sys.executable, shown[1]], capture_output=True, text=True, check=True, cwd=repository)
    assert child.stdout == shown[2]


@pytest.mark.parametrize("part", ["margin_floor, margin_fraction * transient_peak", "0.92 by default", "256 MiB"])
def test_the_page_has_the_constants_of_the_code(page: str, part: str) -> None:
    assert part in page
