"""Reading a config.json: each value by its name, checked once, and an error that says which name is wrong."""

from __future__ import annotations

import math
from typing import Any, Final

from vmmcache.errors import ConfigError
from vmmcache.units import as_count

__all__ = ["Fields"]

_MOST: Final = 1 << 24
"""More than any width or vocabulary there is; a number beyond it is a slip of the pen, not a model."""


class Fields:
    """A JSON object, read field by field. `path` names it in errors where it is part of another."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self._values = values
        self.path = path

    def __contains__(self, field: str) -> bool:
        return self._values.get(field) is not None

    def get(self, field: str) -> Any:
        """Give a value as it stands, None where it is missing."""
        return self._values.get(field)

    def count(self, field: str, *, minimum: int = 1, maximum: int = _MOST) -> int:
        """Give a whole number."""
        return as_count(self.path + field, self._required(field), minimum=minimum, maximum=maximum, unit="elements")

    def number(self, field: str) -> float:
        """Give a positive, finite number."""
        value = self._required(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(self.path + field, value, "must be a number")
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(self.path + field, value, "must be finite and greater than 0")
        return float(value)

    def word(self, field: str, known: tuple[str, ...]) -> str:
        """Give one of the known words."""
        value = self._required(field)
        if value not in known:
            raise ConfigError(self.path + field, value, f"the demo knows {', '.join(known)}")
        return str(value)

    def section(self, field: str, *, within: str | None = None) -> Fields | None:
        """Give an object inside this one, or None; where it has a part named `within`, that part is taken instead."""
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(self.path + field, value, "must be an object")
        path = f"{self.path}{field}."
        if within is not None and within in value:
            return Fields(value, path).section(within)
        return Fields(value, path)

    def _required(self, field: str) -> Any:
        value = self._values.get(field)
        if value is None:
            raise ConfigError(self.path + field, value, "is missing")
        return value
