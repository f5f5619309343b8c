"""A plan as a picture: memory as a bar for each pool group, and what other quotas would buy as curves.

SVG is written as text: a drawing of rectangles and lines needs no library, and looks the same everywhere.
"""

from __future__ import annotations

from html import escape

from vmmcache.cli._plan_curves import Curve, curves_of, ticks
from vmmcache.cli._plan_subject import Subject
from vmmcache.cli._plan_table import group_name, layers_of
from vmmcache.planning import Plan
from vmmcache.units import format_bytes

__all__ = ["picture"]

WIDTH, MARGIN, ROW, CHART = 960, 40, 46, 240
LABEL, BAR = 250, 430
INK, SOFT, GRID = "#1f2933", "#66727f", "#dfe4ea"
FLOOR, BEYOND, UNUSED = "#0b4f8a", "#6fb1e4", "#eef1f4"
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\""


def picture(subject: Subject, planned: Plan) -> str:
    """The plan as an SVG document."""
    bars, bottom = _bars(planned, 128)
    curves = curves_of(subject, planned)
    width = (WIDTH - 2 * MARGIN - 60 * (len(curves) - 1)) // max(len(curves), 1)
    charts = []
    for place, curve in enumerate(curves):
        charts += _chart(curve, planned, MARGIN + place * (width + 60), bottom + 54, width)
    height = bottom + 54 + CHART + 56 if curves else bottom + 20
    head = [
        _text(MARGIN, 46, f"{subject.title} in {format_bytes(planned.quota or 0)}", size=22, weight=600),
        _text(MARGIN, 72, " · ".join(subject.facts), size=13, fill=SOFT),
        *_legend(104),
    ]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {FONT}>',
            f"<title>{escape(subject.title)}: {format_bytes(planned.nbytes)} of cache</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *head,
            *bars,
            *charts,
            "</svg>",
            "",
        ]
    )


def _legend(y: int) -> list[str]:
    marks: list[str] = []
    x = MARGIN
    for color, text in ((FLOOR, "floor"), (BEYOND, "beyond the floor"), (UNUSED, "rest of the quota")):
        marks += [_rect(x, y - 10, 12, 12, color), _text(x + 18, y, text, size=12, fill=SOFT)]
        x += 30 + 7 * len(text)
    return marks


def _bars(planned: Plan, top: int) -> tuple[list[str], int]:
    """A bar for each pool group, all on the scale of the quota."""
    usable = max(planned.usable or 0, planned.nbytes)
    marks: list[str] = []
    y = top
    for group in planned.groups:
        floor = sum(
            -(-group.min_slots * size // planned.granule) * planned.granule * count
            for pool in group.segments
            for size, count in pool
        )
        x, filled = MARGIN + LABEL, max(2, BAR * group.nbytes // usable)
        name = group_name(group)
        marks += [
            _text(MARGIN, y + 13, name if len(name) <= 34 else name[:33] + "…", size=13),
            _text(MARGIN, y + 29, f"{layers_of(planned, group)} layers", size=11, fill=SOFT),
            _rect(x, y, BAR, 22, UNUSED),
            _rect(x, y, filled, 22, BEYOND),
            _rect(x, y, min(filled, BAR * floor // usable), 22, FLOOR),
            _text(x + BAR + 14, y + 11, format_bytes(group.nbytes), size=13, weight=600),
            _text(x + BAR + 14, y + 27, f"{group.slots:,} slots, floor {group.min_slots:,}", size=11, fill=SOFT),
        ]
        y += ROW
    return marks, y


def _chart(curve: Curve, planned: Plan, x: int, y: int, width: int) -> list[str]:
    """One curve over the quota, with the planned quota marked."""
    assert planned.quota is not None
    left, right = x + 56, x + width
    xs = ticks(max(quota for quota, _ in curve.points), binary=True)
    ys = ticks(max(1, max(value for _, value in curve.points)), binary=False)

    def at(quota: int, value: int) -> tuple[float, float]:
        return (
            left + (right - left) * min(quota, xs[-1]) / xs[-1],
            y + CHART - CHART * min(value, ys[-1]) / ys[-1],
        )

    marks = [_text(x, y - 16, curve.title, size=14, weight=600)]
    for value in ys:
        _, height = at(0, value)
        marks += [_line(left, height, right, height, GRID), _text(left - 8, height + 4, _short(value), end=True)]
    for quota in xs:
        place, _ = at(quota, 0)
        marks.append(_text(place, y + CHART + 20, format_bytes(quota) if quota else "0", middle=True))
    if curve.limit is not None and curve.limit < ys[-1]:
        _, height = at(0, curve.limit)
        marks += [
            _line(left, height, right, height, SOFT, dash="2 4"),
            _text(left + 6, height - 6, f"{curve.limit_name} {curve.limit:,}"),
        ]
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(*point) for point in curve.points))
    marks.append(f'<polyline points="{line}" fill="none" stroke="{FLOOR}" stroke-width="2" stroke-linejoin="round"/>')
    px, py = at(planned.quota, curve.now)
    anchor = px > (left + right) / 2
    marks += [
        _line(px, y, px, y + CHART, INK, dash="4 3"),
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4.5" fill="{FLOOR}" stroke="#ffffff" stroke-width="1.5"/>',
        _text(px + (-10 if anchor else 10), max(py - 10, y + 14), f"{curve.now:,}", size=13, weight=600, end=anchor),
    ]
    return marks


def _short(number: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return str(number)


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="{fill}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, dash: str = "") -> str:
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"{style}/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    weight: int = 400,
    fill: str = "",
    end: bool = False,
    middle: bool = False,
) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    color = fill or (INK if size > 11 else SOFT)
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{color}"{anchor}>'
        f"{escape(text)}</text>"
    )
