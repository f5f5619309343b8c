"""Lists on docs/invariants.md, after **Shown by**, the files whose tests cite each invariant.

``python docs/cite.py`` rewrites the lists; tests/test_docs.py sees that what they name still cites the invariant.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["citing", "rewritten"]

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "invariants.md"
# What holds the page is no test of an invariant, and faults that are planted cite what they break.
LEFT_OUT: Final = r"tests/(test_docs.*|mutants/.*)\.py"


def citing() -> dict[str, list[str]]:
    """For each invariant, the files of tests and of the shipped suites that cite it."""
    found: dict[str, list[str]] = {}
    for folder in ("tests", "vmmcache/testing"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not re.fullmatch(LEFT_OUT, name):
                for key in set(re.findall(r"\bI\d+\b", path.read_text(encoding="utf-8"))):
                    found.setdefault(key, []).append(name)
    return found


def rewritten(page: str) -> str:
    """The page with its lists as they are to be."""
    files = citing()

    def section(match: re.Match[str]) -> str:
        names = ",\n".join(f"`{name}`" for name in files.get(match[1], []))
        return re.sub(r"\*\*Shown by\*\* [^#]*?\.\n", f"**Shown by** {names}.\n", match[0])

    return re.sub(r"^### (I\d+) .*?(?=^##|\Z)", section, page, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
