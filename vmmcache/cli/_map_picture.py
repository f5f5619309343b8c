"""An address-space map as a picture. SVG is written as text: rectangles and words need no library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from vmmcache.cli._map_rows import Row, covered, rows
from vmmcache.memory.atlas import AddressMap, TensorMap
from vmmcache.memory.ranges import Range
from vmmcache.units import format_bytes

__all__ = ["picture"]

MOST_ROWS: Final = 40
GRID: Final = 155
"""Parts of the longest row where its ranges are too many to draw each: four pixels."""
WIDTH: Final = 1080
_MARGIN, _LABEL, _BAR, _ROW, _HIGH = 28, 96, 620, 24, 16
INK, SOFT, LINE = "#1f2933", "#616e7c", "#9aa5b1"
RESERVED, MAPPED, COMMITTED, LEASED = "#eef1f4", "#bcd7f0", "#2f6fab", "#c2410c"
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\""


def picture(found: AddressMap, title: str) -> str:
    """The map as an SVG document: a block for each tensor, and in it a bar for each segment, or for some neighbours."""
    parts = [_text(_MARGIN, 38, title, size=19, weight=600), *_legend(62)]
    top = 100
    for tensor in found.tensors:
        block, top = _tensor(tensor, top)
        parts += block
        top += 22
    height = top + 4
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {FONT}>',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _tensor(tensor: TensorMap, top: int) -> tuple[list[str], int]:
    facts = [f"{tensor.device}, {tensor.state}", f"{format_bytes(tensor.reserved)} reserved at {tensor.base:#x}"]
    facts.append(f"{format_bytes(tensor.committed)} committed")
    facts.append(f"{format_bytes(tensor.mapped)} mapped in {len(tensor.allocations):,} allocations")
    if tensor.leases:
        facts.append(f"{format_bytes(tensor.leased)} leased")
    parts = [_text(_MARGIN, top, " · ".join(facts), size=12, weight=600, fill=INK)]
    if tensor.busy is not None:
        top += 18
        busy = f"busy with {tensor.busy.operation} for {tensor.busy.seconds:.1f} s; this is from before"
        parts.append(_text(_MARGIN, top, busy, size=12, fill=LEASED))
    top += 12
    found = rows(tensor, MOST_ROWS)
    scale = _BAR / max(row.nbytes for row in found)
    for row in found:
        parts += _row(row, top, scale)
        top += _ROW
    return parts, top


def _row(row: Row, top: int, scale: float) -> Iterator[str]:
    left = _MARGIN + _LABEL
    yield _text(left - 10, top + 13, row.name, end=True)
    yield _box(left, top, row.nbytes * scale, _HIGH, RESERVED, LINE)
    if row.few:
        yield from _boxes(row, row.mapped, top, _HIGH, scale, MAPPED, INK)
        yield from _boxes(row, row.committed, top + 4, _HIGH - 8, scale, COMMITTED)
        yield from _boxes(row, row.leased, top + _HIGH + 1, 3, scale, LEASED)
    else:
        yield _steps(row, row.mapped, top, _HIGH, scale, MAPPED)
        yield _steps(row, row.committed, top, _HIGH, scale, COMMITTED)
        yield _steps(row, row.leased, top + _HIGH + 1, 3, scale, LEASED)
    text = f"{format_bytes(row.committed_bytes)} of {format_bytes(row.nbytes)}, {format_bytes(row.mapped_bytes)} mapped"
    text += f", {row.allocations:,} allocation" + ("" if row.allocations == 1 else "s")
    yield _text(left + _BAR + 14, top + 13, text)


def _boxes(
    row: Row, ranges: Sequence[Range], top: float, height: float, scale: float, fill: str, stroke: str = ""
) -> Iterator[str]:
    for low, high in ranges:
        x = _MARGIN + _LABEL + (low - row.start) * scale
        # At least half a pixel: what is there is seen.
        yield _box(x, top, max(0.5, (high - low) * scale), height, fill, stroke)


def _steps(row: Row, ranges: Sequence[Range], top: float, height: float, scale: float, fill: str) -> str:
    """How much of each part of a row ranges cover, as a step that is so high."""
    cells = max(1, round(GRID * row.nbytes * scale / _BAR))
    left, width, foot = _MARGIN + _LABEL, row.nbytes * scale / cells, top + height
    path = [f"M{left:.1f} {foot:.1f}"]
    before = 0.0
    for cell, nbytes in enumerate(covered(ranges, row.start, row.stop, cells)):
        share = nbytes * cells / row.nbytes
        if share != before:
            path.append(f"H{left + cell * width:.1f}V{foot - height * min(share, 1):.1f}")
            before = share
    path.append(f"H{left + cells * width:.1f}V{foot:.1f}Z")
    return f'<path d="{"".join(path)}" fill="{fill}"/>'


def _legend(y: int) -> Iterator[str]:
    x = float(_MARGIN)
    for fill, stroke, text in (
        (RESERVED, LINE, "reserved: addresses"),
        (MAPPED, INK, "mapped: a box is an allocation, or the share of many"),
        (COMMITTED, "", "committed: visible bytes"),
        (LEASED, "", "leased to a connector"),
    ):
        yield _box(x, y - 10, 13, 11, fill, stroke)
        yield _text(x + 19, y, text, size=12)
        x += 36 + 7.2 * len(text)  # as wide as the widest fonts make it


def _box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "") -> str:
    line = f' stroke="{stroke}" stroke-width="0.6"' if stroke else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{line}/>'


def _text(
    x: float, y: float, text: str, *, size: int = 11, weight: int = 400, fill: str = "", end: bool = False
) -> str:
    anchor = ' text-anchor="end"' if end else ""
    color = fill or (INK if size > 12 else SOFT)
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{color}"{anchor}>'
        f"{escape(text)}</text>"
    )
