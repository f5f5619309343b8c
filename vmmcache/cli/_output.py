"""Output: people get tables on standard output, programs get one JSON object there and nothing else."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import click

from vmmcache.errors import VmmCacheError

__all__ = ["EXIT_NO", "EXIT_WRONG_USE", "emit_json", "error_object", "json_option"]

EXIT_NO = 1
"""The answer is no: not usable, does not fit, a check failed."""
EXIT_WRONG_USE = 2

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")


def emit_json(report: dict[str, Any]) -> None:
    """Print the one object."""
    click.echo(json.dumps(report, indent=2, allow_nan=False))


def error_object(error: Exception) -> dict[str, Any]:
    """An error as the object that ``--json`` promises, with the numbers that it carries."""
    if isinstance(error, click.ClickException):
        fields: dict[str, Any] = {}
        message = error.format_message()
    else:
        fields = {name: value for name, value in vars(error).items() if isinstance(value, int | float | str | None)}
        message = str(error)
    # JSON has no NaN and no infinity; a refused one is shown as it was written.
    fields |= {name: repr(value) for name, value in fields.items() if isinstance(value, float) and not isfinite(value)}
    kind = type(error).__name__ if isinstance(error, VmmCacheError) else "UsageError"
    return {"schema": 1, "error": {"type": kind, "message": message, **fields}}
