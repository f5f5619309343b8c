"""NIXL's Python package: finding it, its exceptions, and what a backend is told."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from vmmcache.connectors.nixl_plugin import MODULES
from vmmcache.errors import ConfigError, ConnectorUnavailable

__all__ = ["load", "parameters_of"]

_CURE: Final = "Install nixl-cu12 or nixl-cu13, for example with `pip install 'vmmcache[nixl]'`"


def parameters_of(backend: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The caller's parameters, and for UCX a registration cache that is off, whatever else it is told."""
    if not all(type(text) is str for pair in wanted.items() for text in pair):
        raise ConfigError("parameters", dict(wanted), "names and values are text")
    if backend != "UCX":
        return dict(wanted)
    given = wanted.get("engine_config", "")
    if "RCACHE_ENABLE" in given and "RCACHE_ENABLE=n" not in given.split(","):
        raise ConfigError(
            "parameters", given, "UCX's registration cache keeps memory that was deregistered; leave it off"
        )
    config = given if "RCACHE_ENABLE=n" in given.split(",") else ",".join(filter(None, (given, "RCACHE_ENABLE=n")))
    return {**wanted, "engine_config": config}


def load() -> tuple[Any, tuple[type[Exception], ...]]:
    """NIXL's interface, and its exceptions, which have no common class."""
    problems = []
    for package in MODULES:
        try:
            api = importlib.import_module(f"{package}._api")
        except ImportError as error:
            problems.append(str(error))
            continue
        found = vars(api.nixlBind).values()
        errors = tuple(each for each in found if isinstance(each, type) and issubclass(each, Exception))
        return api, (*errors, RuntimeError)
    raise ConnectorUnavailable(f"NIXL cannot be imported: {'; '.join(problems)}", cure=_CURE, connector="nixl")
