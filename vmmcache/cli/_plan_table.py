"""A plan as tables, for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vmmcache.cli._plan_subject import Subject
from vmmcache.planning import GroupPlan, Plan
from vmmcache.planning.limits import MAX_SIZE
from vmmcache.units import format_bytes

__all__ = ["group_name", "show"]


def show(subject: Subject, planned: Plan, larger: Plan | None) -> None:
    """Print what a plan gives, what binds, and what the larger one would give."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(subject.title)}[/]", soft_wrap=True)
    for fact in subject.facts:
        console.print(f"  {fact}", style="dim", soft_wrap=True)
    console.print()
    console.print(_groups(planned))
    if planned.quota is None:
        console.print(f"\nFloors take [bold]{format_bytes(planned.min_nbytes)}[/]; --quota says what more would buy.")
        if subject.length is not None:
            size = format_bytes(subject.request_nbytes())
            console.print(f"  a request of {subject.length:,} tokens takes {size}", soft_wrap=True)
        _show_demand(console, planned)
        return
    _show_bytes(console, planned)
    _show_reductions(console, planned)
    _show_capacity(console, subject, planned, larger)


def group_name(group: GroupPlan, layers: int | None = None) -> str:
    """What a pool group holds, in words."""
    names = []
    for cycle in group.life_cycles:
        if cycle.kind == "ssm":
            names.append("states")
        elif cycle.window is None:
            names.append("full attention")
        else:
            sinks = f" + {cycle.sink_blocks} sink blocks" if cycle.sink_blocks else ""
            names.append(f"window {cycle.window}{sinks}")
    return ", ".join(names) + (f" ({layers} layers)" if layers else "")


def layers_of(planned: Plan, group: GroupPlan) -> int:
    """How many layers draw from a group."""
    return sum(planned.layout.layers[place].count for cycle in group.life_cycles for place in cycle.layers)


def _groups(planned: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("pool group")
    headers = ("layers", "slot", "floor", "slots", "memory", "share")
    for header in headers if planned.quota is not None else headers[:3]:
        table.add_column(header, justify="right", no_wrap=True)
    for index, group in enumerate(planned.groups):
        row = [
            str(index),
            group_name(group),
            str(layers_of(planned, group)),
            format_bytes(sum(group.slot_bytes)),
            f"{group.min_slots:,}",
        ]
        if planned.quota is not None:
            row += [f"{group.slots:,}", format_bytes(group.nbytes), f"{100 * group.nbytes / planned.nbytes:.1f} %"]
        table.add_row(*row)
    return table


def _show_demand(console: Console, planned: Plan) -> None:
    for place, need in enumerate(planned.demand):
        console.print(f"  constraint {place} needs " + ", ".join(f"{slots:,}" for slots in need) + " slots")


def _show_bytes(console: Console, planned: Plan) -> None:
    assert planned.quota is not None
    assert planned.usable is not None
    lost = planned.quota - planned.usable
    unused = planned.usable - planned.nbytes
    text = f"\n[bold]{format_bytes(planned.nbytes)}[/] of {format_bytes(planned.quota)}"
    text += f", {format_bytes(lost)} lost to the granule" if lost else ""
    text += f", {format_bytes(unused)} left over" if unused else ""
    console.print(text, soft_wrap=True)


def _show_reductions(console: Console, planned: Plan) -> None:
    for reduction in planned.reductions:
        old, new = reduction.capacity
        entry = f"constraint {reduction.batch}, request {reduction.request}"
        console.print(f"  [yellow]reduced[/] {entry}: {old:,} -> {new:,} tokens", soft_wrap=True)
    if planned.binding is not None:
        group = planned.groups[planned.binding.group]
        asks = "the layout" if planned.binding.constraint is None else f"constraint {planned.binding.constraint}"
        console.print(
            f"  [yellow]binds[/] pool group {planned.binding.group} ({group_name(group)}), for {asks};"
            f" as asked for, the workload is {format_bytes(planned.binding.short)} too large",
            soft_wrap=True,
        )


def _show_capacity(console: Console, subject: Subject, planned: Plan, larger: Plan | None) -> None:
    now = subject.capacity(planned)
    then = subject.capacity(larger) if larger is not None else None
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("now", justify="right", no_wrap=True)
    table.add_column("one more GiB", justify="right", style="dim")
    if subject.length is not None:
        row = f"{then.requests - now.requests:+,}" if then else ""
        table.add_row(f"requests of {now.length:,} tokens at a time", f"[bold]{now.requests:,}[/]", row)
    if now.longest_in_memory < MAX_SIZE:
        row = f"{then.longest_in_memory - now.longest_in_memory:+,}" if then else ""
        table.add_row("longest single request, tokens", f"[bold]{now.longest_in_memory:,}[/]", row)
    if now.longest == subject.upper < MAX_SIZE:
        table.add_row("  the model's limit", f"{subject.upper:,}", "")
    if now.bytes_per_token:
        table.add_row("bytes per token of a long request", f"{now.bytes_per_token:,}", "")
    console.print()
    console.print(table)
    if subject.length is not None:
        name = group_name(planned.groups[now.exhausted])
        console.print(f"\nwhat gives out first: pool group {now.exhausted} ({name})", soft_wrap=True)
