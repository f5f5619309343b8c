"""docs/sharing.md shows the frames that really travel, and an example that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.helpers import PATIENCE_S
from vmmcache.sharing import _wire as wire


def test_the_table_of_frames_is_the_code(repository: Path) -> None:
    page = (repository / "docs" / "sharing.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (\d+) \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert [(int(number), *rest) for number, *rest in shown] == list(wire.table())
    assert f"`{wire.MAGIC.decode()}`" in page
    assert f"A head of {wire.HEAD.size} bytes" in page
    assert f"At most {wire.BATCH} descriptors" in page
    entry = ", ".join(f"{name}: {kind}" for name, kind in wire.Layout.of(wire.Entry))
    assert f"`{entry}`" in page


def test_the_example_runs(repository: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", str(repository / "docs" / "examples" / "sharing.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == "importer reads hello\nimporter has 0 bytes while the exporter sleeps\n"
