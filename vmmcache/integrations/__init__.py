"""For libraries that know nothing of vmmcache: each package needs the library that it is named after."""

from __future__ import annotations

__all__: list[str] = []
