"""``vmmcache map``: what a process has of address space and memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from vmmcache.cli._output import emit_json, json_option
from vmmcache.errors import ConfigError, SharingError
from vmmcache.memory.atlas import Found, read

__all__ = ["command"]

_DEMO = "demo"


@click.command("map")
@click.argument("process", metavar="PID|demo")
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE", help="Draw it as well."
)
@json_option
def command(process: str, svg: Path | None, as_json: bool) -> int:
    """Show the address space of a process: what is reserved, mapped, committed and leased.

    The process has to publish its map: by vmmcache.publish(), by KVCacheManager(..., publish=True), or with
    VMMCACHE_MAP=1 in its environment. It is not asked anything, so one that hangs is shown with what it had, and one
    that crashed with what it had last. `demo` shows a short life in this process.

    The exit status is 1 if there is nothing to show.
    """
    with _found(process) as found:
        age_s = max(0.0, time.time() - found.map.time)
        if svg is not None:
            from vmmcache.cli._map_picture import picture

            state = "" if found.alive else ", which has ended"
            title = f"Address space of process {found.map.pid}{state}"
            try:
                svg.write_text(picture(found.map, title), encoding="utf-8")
            except OSError as error:
                raise ConfigError("--svg", str(svg), f"cannot be written: {error.strerror}") from error
        if as_json:
            emit_json(found.map.to_dict() | {"alive": found.alive, "age_s": age_s})
        else:
            from rich.console import Console

            from vmmcache.cli._map_text import show

            show(Console(highlight=False), found, age_s)
            if svg is not None:
                click.echo(f"drawn in {svg}", err=True)
    return 0


@contextmanager
def _found(process: str) -> Iterator[Found]:
    if process.lower() == _DEMO:
        from vmmcache.cli._map_demo import demo_map

        with demo_map() as found:
            yield Found(found, alive=True)
        return
    if not (process.isascii() and process.isdecimal()):
        raise ConfigError("PID", process, f"must be the number of a process, or {_DEMO}")
    there = read(int(process))
    if not there.map.tensors:
        raise SharingError("publishes its map, and has no tensor", peer=f"process {process}")
    yield there
