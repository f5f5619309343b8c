"""Reads a model's config.json: every field by name, with an error that names it where it is missing or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vmmcache.errors import ConfigError
from vmmcache.planning.limits import as_size

__all__ = ["ModelConfig"]

MAX_LAYERS: Final = 1 << 16
NESTED: Final = ("text_config", "language_config", "llm_config")
"""Where models of several kinds of input keep the part that has the cache."""


class ModelConfig:
    """The part of a config.json that describes the language model.

    Raises
    ------
    ConfigError
        Not a JSON object, or one without ``model_type``.
    """

    def __init__(self, content: object) -> None:
        if not isinstance(content, Mapping):
            raise ConfigError("config", content, "must be the JSON object of a model's config.json")
        self._whole: Mapping[str, Any] = content
        nested = [content[name] for name in NESTED if isinstance(content.get(name), Mapping)]
        self._fields: Mapping[str, Any] = nested[0] if nested else self._whole
        model_type = self.value("model_type") or self.of_whole("model_type")
        if not isinstance(model_type, str) or not model_type:
            raise ConfigError("model_type", model_type, "missing: this is no config.json of a model")
        self.model_type = model_type

    def value(self, *names: str) -> Any:
        """The first of `names` that is there and not null; None where there is none."""
        return next((self._fields[name] for name in names if self._fields.get(name) is not None), None)

    def of_whole(self, *names: str) -> Any:
        """Like `value`, but what the language model's part leaves open, the config around it may say."""
        value = self.value(*names)
        if value is not None:
            return value
        return next((self._whole[name] for name in names if self._whole.get(name) is not None), None)

    @property
    def layers(self) -> int:
        """Number of layers."""
        number = self.count("num_hidden_layers")
        if number > MAX_LAYERS:
            raise ConfigError("num_hidden_layers", number, f"no model has more than {MAX_LAYERS} layers")
        return number

    def count(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number.

        Raises
        ------
        ConfigError
            There is none and no default, or it is not a whole number of at least `minimum`.
        """
        value = self.value(*names)
        if value is None:
            if default is None:
                spelt = " or ".join(names)
                raise ConfigError(names[0], None, f"missing in the config of a {self.model_type} model ({spelt})")
            return default
        return as_size(names[0], value, minimum=minimum, unit="elements")

    def size(self, *names: str) -> int | None:
        """A whole number of at least 1, or None where it is null or missing."""
        return None if self.value(*names) is None else self.count(*names)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(name, value, "must be true or false")
        return value

    def list_of(self, name: str, kind: type, length: int | None = None) -> Sequence[Any] | None:
        """A list of `kind`, of a given length; None where it is missing."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
            raise ConfigError(name, value, f"must be a list of {kind.__name__}")
        if length is not None and len(value) != length:
            raise ConfigError(name, value, f"has {len(value)} entries for {length} layers")
        return value
