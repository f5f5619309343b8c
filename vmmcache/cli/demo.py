"""``vmmcache demo``: the whole life of an elastic KV cache, on this machine, with real arithmetic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from vmmcache import models
from vmmcache.cli._output import EXIT_NO, emit_json, error_object, json_option
from vmmcache.errors import DriverUnavailable, VmmCacheError
from vmmcache.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from vmmcache.demo.life import Life

__all__ = ["command"]


@click.command("demo")
@click.option("--device", metavar="DEVICE", help="For example cuda:0 or host. The best of this machine by default.")
@click.option(
    "--model",
    metavar="NAME|FILE",
    default="qwen3-0.6b",
    show_default=True,
    help=f"One of {', '.join(models.names())}, or a model's config.json.",
)
@click.option(
    "--tokens", type=click.IntRange(1, 512), default=16, show_default=True, metavar="N", help="Decode steps to run."
)
@json_option
def command(device: str | None, model: str, tokens: int, as_json: bool) -> int:
    """Show the whole life of an elastic KV cache on this machine.

    Lays out the cache of a real model layer by layer, and grows it block by block while it decodes a batch of requests
    through paged attention. At every step the logits are compared, bit for bit, with those of a cache that was
    allocated at full size. Then: leases, a shrink that must be refused, sleep, wake, close.

    The model's layers and attention are its own; its weights are random and its other widths cut, so that a CPU can do
    it in seconds. The exit status is 0 if everything held, 1 if not.
    """
    name, config = models.find(model)
    failure: VmmCacheError | None = None
    with _progress() as progress:
        task = progress.add_task("choose a device", total=None)
        life = _prepare(name, config, device, tokens)
        try:
            for moment in life.live():
                progress.update(task, description=moment.stage, completed=moment.done, total=moment.total)
        except VmmCacheError as error:
            failure = error
    report = life.report.to_dict()
    if as_json:
        emit_json(report if failure is None else report | error_object(failure))
    else:
        _print(report)
        if failure is not None:
            raise failure
    return 0 if report["ok"] else EXIT_NO


def _prepare(name: str, config: dict[str, Any], device: str | None, tokens: int) -> Life:
    try:
        from vmmcache.demo.life import Life
        from vmmcache.demo.where import choose
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DriverUnavailable(
            "the demo computes with torch, and torch is not installed",
            cure="Install it, for example with the extra `torch`; `vmmcache probe` needs none",
            driver="demo",
            call="import torch",
        ) from error
    return Life(name, config, choose(device), tokens=tokens)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # On standard error, and on a terminal only: standard output belongs to the report.
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    _print_setting(console, report)
    if "growth" in report:
        _print_growth(console, report)
    _print_checks(console, report)


def _print_setting(console: Console, report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    driver, model, layout, work = (report[section] for section in ("driver", "model", "layout", "workload"))
    sliding = f", {model['sliding_layers']} with a sliding window" if model["sliding_layers"] else ""
    heads = f"{model['heads']} query heads, {model['kv_heads']} for keys and values, of {model['head_dim']} elements"
    cut = ", ".join(
        f"{field} {width['model']} -> {width['run']}"
        for field, width in model["trimmed"].items()
        if width["model"] != width["run"]
    )
    token, block = format_bytes(layout["token_bytes"]), format_bytes(layout["block_bytes"])
    full = f"{layout['capacity_blocks']} blocks, {format_bytes(layout['full_bytes'])}"
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("driver", escape(f"{driver['device']}: {driver['why']}"))
    table.add_row("model", escape(f"{model['name']} ({model['architecture']}), {model['layers']} layers{sliding}"))
    table.add_row("attention", heads)
    table.add_row("weights", f"{model['weights']}{f'; cut: {cut}' if cut else ''}")
    table.add_row("cache", f"one segment a layer, {model['dtype']}, {token} a token in all layers")
    table.add_row("blocks", f"{layout['block_tokens']} tokens, {block} in each layer")
    table.add_row("full size", f"{full}; memory comes in granules of {format_bytes(driver['granule'])}")
    joining = f"{work['requests']} requests that join one by one, {work['prompt_tokens']} prompt tokens"
    table.add_row("work", f"{joining}, {work['decode_steps']} decode steps")
    console.print(table)
    console.print()


def _print_growth(console: Console, report: dict[str, Any]) -> None:
    from rich.bar import Bar
    from rich.table import Table

    growth, full = report["growth"], report["layout"]["full_bytes"]
    table = Table(
        title="Whenever memory was mapped", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    for header in ("during step", "blocks", "committed", "mapped"):
        table.add_column(header, justify="right")
    table.add_column("of full size")
    for event in (growth["first"], *growth["events"]):
        table.add_row(
            str(event["step"]),
            str(event["blocks"]),
            format_bytes(event["committed_bytes"]),
            format_bytes(event["physical_bytes"]),
            Bar(full, 0, event["physical_bytes"], width=32),
        )
    console.print(table)
    console.print()


def _print_checks(console: Console, report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column()
    table.add_column(style="dim")
    for check in report["checks"]:
        table.add_row("[green]yes[/]" if check["ok"] else "[bold red]NO[/]", check["name"], escape(check["detail"]))
    console.print(table)
    console.print()
    if not report["ok"]:
        failed = [check["name"] for check in report["checks"] if not check["ok"]]
        console.print(f"[bold red]Not everything held[/]: {', '.join(failed) or 'it ended early'}")
        return
    mapped, full = (format_bytes(report["bytes"][kind]) for kind in ("physical", "full_size"))
    console.print(
        f"[green]Everything held[/], in {report['seconds']} s: {mapped} mapped instead of {full}, "
        f"{report['growth']['logical']} growths for {1000 * report['growth']['seconds']:.0f} ms in all."
    )
