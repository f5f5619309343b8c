"""An address-space map on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vmmcache.cli._map_rows import Row, covered, rows
from vmmcache.memory.atlas import Found, TensorMap
from vmmcache.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

__all__ = ["show"]

MOST_ROWS: Final = 32
CELLS: Final = 48
NUMBERS, NUMBERS_GROUPED = 66, 92
"""Columns of the terminal that numbers take."""
# From what there is least of to what there is most of. Each has a letterform of its own: colours are extra.
RESERVED, MAPPED, COMMITTED, LEASED = "·", "░", "▒", "█"
_STYLES: Final = {RESERVED: "dim", MAPPED: "cyan", COMMITTED: "blue", LEASED: "magenta"}


def show(console: Console, found: Found, age_s: float) -> None:
    """Print a map."""
    from rich.markup import escape

    process = f"process {found.map.pid}"
    if not found.alive:
        console.print(f"[bold red]{process} has ended[/] without removing its map: what it had {_ago(age_s)} ago")
    else:
        console.print(f"[bold]{process}[/], as it was {_ago(age_s)} ago")
    for tensor in found.map.tensors:
        console.print()
        for line in _head(tensor):
            console.print(escape(line), soft_wrap=True)
        if tensor.busy is not None:
            busy = tensor.busy
            console.print(
                f"[bold yellow]busy with {escape(busy.operation)} for {busy.seconds:.1f} s[/]: this is from before"
            )
        console.print(_table(rows(tensor, MOST_ROWS), console.width))
    console.print()
    console.print(_legend())
    console.print(_summary(found.map.tensors), soft_wrap=True)


def _head(tensor: TensorMap) -> Iterator[str]:
    kind = {"tensor": "tensor", "shared": "memory of another process", "dropped": "dropped tensor, kept by its views"}
    segments = f"{len(tensor.segments):,} segments" if tensor.segments else "segments not known"
    yield (
        f"{tensor.device}  {tensor.base:#x}  {kind[tensor.kind]}, {tensor.state}, {segments}, granules of "
        f"{format_bytes(tensor.granule)}, generation {tensor.generation}"
    )
    amounts = [f"{format_bytes(tensor.reserved)} reserved", f"{format_bytes(tensor.committed)} committed"]
    amounts.append(f"{format_bytes(tensor.mapped)} mapped in {len(tensor.allocations):,} allocations")
    if tensor.leases:
        owners = list(dict.fromkeys(lease.owner for lease in tensor.leases))
        some = ", ".join(owners[:3]) + (f" and {len(owners) - 3} others" if len(owners) > 3 else "")
        amounts.append(f"{format_bytes(tensor.leased)} leased to {some}")
    if tensor.owed:
        amounts.append(f"{format_bytes(tensor.owed)} that the driver refused to take back")
    yield ", ".join(amounts)


def _table(found: list[Row], width: int) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    grouped = any(row.first != row.last for row in found)
    for header in ("segments" if grouped else "segment", "offset", "size", "committed", "mapped", "allocations"):
        table.add_column(header, justify="right", no_wrap=True)
    if grouped:
        table.add_column("each segment", justify="right", no_wrap=True)
    cells = max(8, min(CELLS, width - (NUMBERS_GROUPED if grouped else NUMBERS)))
    table.add_column("addresses", no_wrap=True, min_width=cells)
    widest = max(row.nbytes for row in found)
    for row in found:
        least, most = format_bytes(row.least), format_bytes(row.most)
        each = [least if least == most else f"{least} .. {most}"] if grouped else []
        table.add_row(
            row.name,
            f"+{format_bytes(row.start)}",
            format_bytes(row.nbytes),
            format_bytes(row.committed_bytes),
            format_bytes(row.mapped_bytes),
            f"{row.allocations:,}",
            *each,
            _bar(row, max(1, round(cells * row.nbytes / widest))),
        )
    return table


def _bar(row: Row, cells: int) -> Text:
    from rich.text import Text

    counted = [covered(ranges, row.start, row.stop, cells) for ranges in (row.mapped, row.committed, row.leased)]
    text = Text()
    for mapped, committed, leased in zip(*counted, strict=True):
        if not mapped:
            mark = RESERVED
        elif 2 * leased >= mapped:
            mark = LEASED
        else:
            mark = COMMITTED if 2 * committed >= mapped else MAPPED
        text.append(mark, style=_STYLES[mark])
    return text


def _legend() -> Text:
    from rich.text import Text

    words = (
        (RESERVED, "reserved, without memory"),
        (MAPPED, "memory"),
        (COMMITTED, "most of it committed"),
        (LEASED, "most of it leased"),
    )
    line = Text()
    for place, (mark, word) in enumerate(words):
        line.append("  " if place else "").append(mark, style=_STYLES[mark]).append(f" {word}")
    return line


def _summary(tensors: tuple[TensorMap, ...]) -> str:
    def total(amounts: Iterator[int]) -> str:
        return format_bytes(sum(amounts))

    return (
        f"{len(tensors)} tensor{'' if len(tensors) == 1 else 's'}: "
        f"{total(tensor.reserved for tensor in tensors)} reserved, "
        f"{total(tensor.committed for tensor in tensors)} committed, "
        f"{total(tensor.mapped + tensor.owed for tensor in tensors)} of memory in "
        f"{sum(len(tensor.allocations) for tensor in tensors):,} allocations, "
        f"{total(tensor.leased for tensor in tensors)} leased"
    )


def _ago(age_s: float) -> str:
    if age_s < 120:
        return f"{age_s:.1f} s"
    return f"{age_s / 60:.0f} min" if age_s < 7200 else f"{age_s / 3600:.0f} h"
