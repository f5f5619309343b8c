"""Writes the tables of docs/connectors.md from what the connectors say: ``python docs/generate_connectors.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vmmcache import ConnectorNeeds
from vmmcache.connectors import mooncake, nixl

PAGE: Final = Path(__file__).parent / "connectors.md"
BEGIN: Final = "<!-- needs: begin -->\n"
END: Final = "<!-- needs: end -->\n"

EVERY_RULE: Final = ConnectorNeeds(
    alignment=64 << 10,
    on_granules=True,
    whole_segments=True,
    exact_blocks=True,
    single_storage=True,
    largest_region=2 << 30,
    rdma=True,
    handle_types=frozenset({"fabric"}),
    one_device=True,
    memory=frozenset({"VRAM"}),
)
"""Each rule with a value, so that its sentence can be shown."""


def tables() -> str:
    """The part of the page between its marks."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    asked = {
        name: {rule for rule, _ in needs.rules()}
        for name, needs in (("nixl", nixl.NEEDS), ("mooncake", mooncake.NEEDS))
    }
    yield f"| Rule | For example | {' | '.join(asked)} |"
    yield "|---" * (2 + len(asked)) + "|"
    for rule, what in EVERY_RULE.rules():
        yield f"| `{rule}` | {what} | {' | '.join('yes' if rule in rules else '' for rules in asked.values())} |"


def rewritten(page: str) -> str:
    """The page with today's tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
