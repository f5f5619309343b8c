"""``vmmcache probe``: what this host can do, why not, and the cure."""

from __future__ import annotations

from typing import Any

import click

from vmmcache.cli._output import EXIT_NO, emit_json, json_option
from vmmcache.errors import ConfigError
from vmmcache.probing import probe_all
from vmmcache.units import format_bytes

__all__ = ["command"]

_COLORS = {"ok": "green", "installed": "green", "unavailable": "yellow", "broken": "red"}


@click.command("probe")
@click.option("--driver", "name", metavar="NAME", help="Probe this driver only; the exit status speaks of it.")
@click.option(
    "--device",
    "index",
    type=click.IntRange(min=0),
    metavar="N",
    help="The exit status speaks of this device; without --driver, of any driver's.",
)
@click.option("--connectors", "load", is_flag=True, help="Load each connector's library, and say why it does not load.")
@json_option
def command(name: str | None, index: int | None, load: bool, as_json: bool) -> int:
    """Say what this host can do, why not, and the cure.

    Every driver is probed in a child process, by real calls: a library that crashes or hangs is a reason like any
    other. Connectors are listed; with --connectors their libraries are loaded, in child processes as well. The exit
    status is 0 if a device can be used, 1 if not.
    """
    if load and name is not None:
        raise ConfigError("--connectors", True, "is for all of them, and --driver for one driver: choose one")
    report = probe_all(name, connectors=True if load else None)
    if name is not None and not report["drivers"]:
        raise ConfigError(
            "--driver", name, "no driver of that name is installed; `vmmcache probe` lists those that are"
        )
    devices = [device for entry in report["drivers"] for device in entry["devices"]]
    usable = [device for device in devices if device["vmm"] and index in (None, device["index"])]
    if as_json:
        emit_json(report)
    else:
        _print(report)
    return 0 if usable else EXIT_NO


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # Names, paths and reasons are strangers' text, and may have brackets of their own.
    console = Console(highlight=False)
    for entry in report["drivers"]:
        color = _COLORS[entry["status"]]
        name, origin = escape(entry["name"]), escape(entry["origin"])
        console.print(f"[bold]{name}[/] [{color}]{entry['status']}[/]  [dim]{origin}[/]")
        if library := "  ".join(filter(None, (entry["library"]["version"], entry["library"]["path"]))):
            console.print(f"  library  {library}", soft_wrap=True, markup=False)
        if entry["reason"]:
            console.print(f"  why      {entry['reason']}\n  cure     {entry['cure']}", soft_wrap=True, markup=False)
        for device in entry["devices"]:
            table = Table(title=escape(_title(device)), title_justify="left", title_style="", box=None, padding=(0, 1))
            for header in ("step", "", "found"):
                table.add_column(header, overflow="fold")
            table.add_column("ms", justify="right", style="dim")
            for step in (*entry["steps"], *device["steps"]):
                found = step["detail"] or "" if step["ok"] else f"{step['reason']}. {step['cure']}"
                mark = "[green]yes[/]" if step["ok"] else "[yellow]no[/]"
                table.add_row(escape(step["name"]), mark, escape(found), f"{step['ms']:.2f}")
            console.print(table)
        console.print()
    for entry in report["connectors"]:
        name, origin = escape(entry["name"]), escape(entry["origin"])
        console.print(f"connector [bold]{name}[/] [{_COLORS[entry['status']]}]{entry['status']}[/]  [dim]{origin}[/]")
        if entry["reason"]:
            console.print(f"  why      {entry['reason']}\n  cure     {entry['cure']}", soft_wrap=True, markup=False)
    if report["connectors"]:
        console.print()
    kind = "an accelerator" if report["accelerator"] else "no accelerator"
    console.print(f"selected: [bold]{escape(report['selected'] or 'nothing')}[/] ({kind})")


def _title(device: dict[str, Any]) -> str:
    memory = device["memory"]
    size = f", {format_bytes(memory['total'])}" if memory else ""
    return f"  {device['device']}  {device['name']}{size}  {'usable' if device['vmm'] else 'not usable'}"
