"""Facts of public models, in the words of their config.json, so that examples and commands need no download.

Only what decides a cache's layout and a decoder's arithmetic is kept; there are no weights and no tokenizer here. Each
file holds the values of the model's own ``config.json`` on its public page, named in `SOURCES`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from vmmcache.errors import ConfigError

__all__ = ["SOURCES", "find", "load", "names", "read"]

SOURCES: Final[dict[str, str]] = {
    # Compared with google/gemma-3-1b-it as saved by transformers 4.52.4.
    "gemma-3-1b": "https://huggingface.co/google/gemma-3-1b-it/blob/main/config.json",
    # Compared with what transformers 4.45.2 prints, and with torchtune's builder llama3_1_8b.
    "llama-3.1-8b": "https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json",
    # Compared with the file as of transformers 4.51.0, and with torchtune's builder qwen3_0_6b_instruct.
    "qwen3-0.6b": "https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json",
}
"""The page that each model's values come from; the key is the name to load it by."""


def names() -> tuple[str, ...]:
    """Names that `load` takes.

    >>> names()
    ('gemma-3-1b', 'llama-3.1-8b', 'qwen3-0.6b')
    """
    return tuple(sorted(SOURCES))


def load(name: str) -> dict[str, Any]:
    """Give the config.json of a packaged model.

    >>> load("qwen3-0.6b")["num_key_value_heads"]
    8

    Raises
    ------
    ConfigError
        There is no model of that name.
    """
    if name not in SOURCES:
        raise ConfigError("model", name, f"no packaged model of that name; there are {', '.join(names())}")
    config: dict[str, Any] = json.loads(files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return config


def read(path: Path) -> dict[str, Any]:
    """Read somebody's config.json.

    Raises
    ------
    ConfigError
        The file cannot be read, is not JSON, or is not a JSON object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("model", str(path), f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested beyond reason
        raise ConfigError("model", str(path), f"is not a JSON file: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError("model", str(path), f"must hold a JSON object, not a {type(config).__name__}")
    return config


def find(model: str) -> tuple[str, dict[str, Any]]:
    """Give a model's name and config from what a person typed: a packaged name, a file, or a folder with a config.json.

    Raises
    ------
    ConfigError
        It is none of them, or the file is wrong.
    """
    if model.lower() in SOURCES:
        return model.lower(), load(model.lower())
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if not path.exists():
        raise ConfigError("model", model, f"neither a file nor a packaged model; packaged are {', '.join(names())}")
    return str(path), read(path)
