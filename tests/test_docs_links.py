"""Links of every page lead somewhere: files, headings within them, pictures; and every page can be reached."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("design/*.md"), *ROOT.glob("tests/*/README.md")])

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """What code hosts and MyST make of headings: small letters, no punctuation, dashes; a number where it is taken."""
    found: Counter[str] = Counter()
    result = set()
    for _, heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")
        result.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return result


def links(text: str) -> Iterator[tuple[bool, str]]:
    """Whether it is a picture, and where it leads."""
    for picture, target in LINK.findall(CODE.sub("", FENCE.sub("", text))):
        yield bool(picture), target


def broken(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for picture, target in links(text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if not there.exists():
            yield f"{target}: there is no such file"
        elif picture and there.suffix not in {".svg", ".png"}:
            yield f"{target}: is no picture"
        elif anchor and anchor not in anchors(there.read_text(encoding="utf-8")):
            yield f"{target}: has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_headings_and_pictures(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One\n\n## `Two` & three, four\n\n## One\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#two--three-four) [b](other.md#one-1) [c](#here) `[d](gone.md)`\n\n# Here\n"
        "[e](gone.md) [f](other.md#three) ![g](other.md) [![h](gone.svg)](other.md)\n",
        encoding="utf-8",
    )
    told = [complaint.partition(":")[0] for complaint in broken(page)]
    assert told == ["gone.md", "other.md#three", "other.md"]


def listed() -> Iterator[str]:
    """Names in the tables of contents of the index; a pattern stands for what it matches."""
    for block in TOCTREE.findall((DOCS / "index.md").read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.strip() and not line.startswith(":"):
                yield from (
                    [str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.glob(f"{line}.md")]
                    if "*" in line
                    else [line]
                )


def test_the_index_lists_every_page_once() -> None:
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.is_relative_to(DOCS)}
    assert Counter(listed()) == Counter(dict.fromkeys(pages - {"index"}, 1))


def test_every_picture_is_shown_on_some_page() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for picture, target in links(page.read_text(encoding="utf-8"))
        if picture and not target.startswith("https://")
    }
    assert set((DOCS / "pictures").glob("*.svg")) <= shown


def test_the_picture_of_every_page_says_in_words_what_it_shows() -> None:
    for page in PAGES:
        for words in re.findall(r"!\[([^\]]*)\]\(", FENCE.sub("", page.read_text(encoding="utf-8"))):
            assert len(words) > 20, f"{named(page)}: {words!r}"
