"""The table of a manager's states, and that the page shows it. What a refusal says is in tests/test_transitions.py."""

from __future__ import annotations

from pathlib import Path

from vmmcache.cache.states import TRANSITIONS, Event

# Written out a second time on purpose: state by state, which events lead where, and all others nowhere.
EXPECTED = {
    "warming": {
        **dict.fromkeys(("views", "committable", "ensure_bound", "ensure", "profile", "warm_up", "measure"), "warming"),
        "apply": "ready",
        "finalize": "ready",
        "close": "closed",
    },
    "ready": {"views": "ready", "resize": "ready", "sleep": "asleep", "close": "closed"},
    "asleep": {"sleep": "asleep", "wake": "ready", "close": "closed"},
    "closed": {"close": "closed"},
}
NEVER = "\N{EN DASH}"


def test_the_table_is_what_the_contract_says() -> None:
    table = {
        state.value: {event.value: after.value for event, after in row.items()} for state, row in TRANSITIONS.items()
    }
    assert table == EXPECTED


def test_the_page_shows_the_table(repository: Path) -> None:
    page = (repository / "docs" / "manager.md").read_text(encoding="utf-8")
    rows = ["| | " + " | ".join(f"**{state}**" for state in EXPECTED) + " |", "|---" * (len(EXPECTED) + 1) + "|"]
    for event in Event:
        cells = [row.get(event.value, NEVER) for row in EXPECTED.values()]
        rows.append(f"| `{event.value}` | {' | '.join(cells)} |")
    assert "\n".join(rows) in page
