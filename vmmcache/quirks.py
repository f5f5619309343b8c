"""Quirks as data: what is known to be wrong with which versions, what follows, and who says so (D11).

A driver has one table of these. It reads its own table, the probe shows the entries that apply, and the page of
quirks in the docs is generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Quirk", "applying"]

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Quirk:
    """One known defect or limit."""

    key: str
    """By which the driver asks for it."""
    what: str
    """What goes wrong, one sentence."""
    consequence: str
    """What the driver does about it, one sentence."""
    source: str
    """Who says so: header, source file, issue."""
    since: Version | None = None
    """First version concerned; None for all before `until`."""
    until: Version | None = None
    """First version that is right again; None where none is known."""
    platform: str | None = None
    """``"wsl"`` where only that platform is concerned."""

    def applies(self, version: Version, platform: str | None) -> bool:
        """Whether a version on a platform is concerned."""
        return (
            (self.since is None or self.since <= version)
            and (self.until is None or version < self.until)
            and self.platform in (None, platform)
        )


def applying(table: tuple[Quirk, ...], version: Version, platform: str | None = None) -> dict[str, Quirk]:
    """The quirks of a table that concern a version on a platform, by key."""
    return {quirk.key: quirk for quirk in table if quirk.applies(version, platform)}
