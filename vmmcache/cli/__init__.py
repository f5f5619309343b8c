"""The command ``vmmcache``. Printing happens in this package only."""

from __future__ import annotations

from vmmcache.cli._app import main

__all__ = ["main"]
