"""Draws the pictures of the docs: states from their table, the address space from a tensor that really lives.

``python docs/pictures/draw.py`` writes them; tests/test_docs.py holds the files equal to what this draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Final

from vmmcache import ExtensibleTensor, KVCacheManager, MemoryBudget
from vmmcache.cache.pools import PoolMap
from vmmcache.cli._map_demo import demo_map
from vmmcache.cli._map_picture import picture
from vmmcache.memory.states import TRANSITIONS, Event, State
from vmmcache.planning import Attention, Buffer, CacheLayout
from vmmcache.units import KIB, MIB, format_bytes

__all__ = ["pictures"]

INK: Final = "#1f2933"
MUTED: Final = "#616e7c"
LINE: Final = "#9aa5b1"
PAPER: Final = "#ffffff"
RESERVED: Final = "#eef1f4"
MAPPED: Final = "#bcd7f0"
COMMITTED: Final = "#2f6fab"

LIFE: Final = (
    "t.commit(5 * MIB)",
    "t.commit(11 * MIB)",
    "t.commit(21 * MIB)",
    "t.commit(21 * MIB, defragment=True)",
    "t.release_physical()",
    "t.restore()",
)
SEGMENTS: Final = (
    "t.commit([3 * MIB, 2 * MIB])",
    "t.commit([5 * MIB, 2 * MIB])",
    "t.commit([5 * MIB, 6 * MIB])",
    "t.commit([2 * MIB, 6 * MIB])",
    "t.commit([2 * MIB, 6 * MIB], defragment=True, keep=True)",
)

CACHE: Final = (
    "kv.ensure(24)  # warm up on a few slots, capture graphs",
    "kv.finalize()  # measured: all that is left",
    "kv.resize(36 * MIB)  # less, while it serves",
    "kv.sleep()",
    "kv.wake()",
)


def pictures() -> dict[str, str]:
    """File name and content of every picture."""
    return {
        "states.svg": states(),
        "life.svg": address_space("t = ExtensibleTensor(64 * MIB, segments=2)", LIFE),
        "segments.svg": address_space("t = ExtensibleTensor(12 * MIB, segments=[5 * MIB, 7 * MIB])", SEGMENTS),
        "slots.svg": slots(),
        "map.svg": address_map(),
        "cache.svg": cache(),
    }


# The address space ---------------------------------------------------------------------------------------------------

_LEFT: Final = 16
_BAR: Final = 560
_WIDTH: Final = 840
_ROW: Final = 54
_HIGH: Final = 20


def address_space(make: str, steps: Sequence[str]) -> str:
    """One bar for each step of a tensor's life, as the tensor itself describes it after the step."""
    names: dict[str, object] = {"ExtensibleTensor": ExtensibleTensor, "MIB": MIB}
    exec(make, names)
    tensor = names["t"]
    assert isinstance(tensor, ExtensibleTensor)
    with tensor:
        return _bars(tensor, make, steps, names)


def cache() -> str:
    """The same for the tensor of a manager: two full layers and a windowed one, in two segments."""
    block = [Buffer("key", 128 * KIB), Buffer("value", 128 * KIB)]
    layout = CacheLayout(16, [Attention(block, count=2), Attention(block, window=512)])
    budget = MemoryBudget(nbytes=64 * MIB)
    with KVCacheManager(layout, "host", budget, chunk=8 * MIB) as manager:
        tensor = manager.memory
        assert isinstance(tensor, ExtensibleTensor)
        make = "kv = KVCacheManager(layout, device, ...)  # addresses for the largest cache, memory for one slot"
        return _bars(tensor, make, CACHE, {"kv": manager, "MIB": MIB})


def _bars(tensor: ExtensibleTensor, make: str, steps: Sequence[str], names: dict[str, object]) -> str:
    parts = [*_row(tensor, make, 0)]
    for place, step in enumerate(steps, start=1):
        exec(step, names)
        parts += _row(tensor, step, place)
    height = _ROW * (len(steps) + 1) + 44
    parts += _legend(height - 20, tensor.granule)
    return _svg(_WIDTH, height, parts)


def _row(tensor: ExtensibleTensor, code: str, place: int) -> Iterator[str]:
    top = 34 + place * _ROW
    scale = _BAR / tensor.capacity
    yield _text(_LEFT, top - 7, code, mono=True)
    yield _box(_LEFT, top, _BAR, _HIGH, RESERVED, LINE)
    descriptors = tensor.registrable()
    for start, nbytes in sorted({(one.base - one.allocation_offset, one.allocation_nbytes) for one in descriptors}):
        stop = min(start - tensor.base_address + nbytes, tensor.capacity)
        left = _LEFT + (start - tensor.base_address) * scale
        yield _box(left, top, _LEFT + stop * scale - left, _HIGH, MAPPED, INK)
    for one in descriptors:
        yield _box(_LEFT + (one.base - tensor.base_address) * scale, top + 5, one.nbytes * scale, _HIGH - 10, COMMITTED)
    for offset in tensor.segment_offsets[1:]:
        x = _LEFT + offset * scale
        yield f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{top + _HIGH + 4}" stroke="{INK}" stroke-width="2"/>'
    committed, mapped = format_bytes(tensor.committed_bytes), format_bytes(tensor.physical_bytes)
    yield _text(_LEFT + _BAR + 16, top + 7, f"{committed} committed, {mapped} mapped", size=12)
    yield _text(_LEFT + _BAR + 16, top + 22, f"{len(tensor.allocations)} allocations", size=12, colour=MUTED)


def _legend(top: float, granule: int) -> Iterator[str]:
    x = float(_LEFT)
    for fill, label in (
        (RESERVED, "reserved: addresses"),
        (COMMITTED, "committed: visible bytes"),
        (MAPPED, f"mapped: granules of {format_bytes(granule)}"),
    ):
        yield _box(x, top - 9, 14, 10, fill, LINE if fill == RESERVED else INK)
        yield _text(x + 20, top, label, size=12, colour=MUTED)
        x += 36 + 7.4 * len(label)  # as wide as the widest fonts make it
    yield f'<line x1="{x:.1f}" y1="{top - 11}" x2="{x:.1f}" y2="{top + 3}" stroke="{INK}" stroke-width="2"/>'
    yield _text(x + 8, top, "where a segment begins", size=12, colour=MUTED)


def address_map() -> str:
    """What ``vmmcache map demo --svg`` draws, at addresses that are the same each time."""
    with demo_map() as found:
        base, tensors = 0x7F00_0000_0000, []
        for tensor in found.tensors:
            tensors.append(replace(tensor, base=base))
            base += 2 * tensor.reserved
    return picture(replace(found, tensors=tuple(tensors)), "Address space of a process")


# Slots ---------------------------------------------------------------------------------------------------------------

_SLOTS: Final = 3


def slots() -> str:
    """Slots of a small layout in both arrangements, as `PoolMap` places them."""
    full = Attention([Buffer("key", 8 * KIB), Buffer("value", 8 * KIB)], count=2)
    windowed = Attention([Buffer("key", 8 * KIB)], window=64, name="windowed")
    layout = CacheLayout(16, [full, windowed])
    parts: list[str] = []
    top = 0.0
    for code in ('PoolMap(layout, "block-major", granule)', 'PoolMap(layout, "layer-major", granule)'):
        pools = PoolMap(layout, "block-major" if "block" in code else "layer-major", 64 * KIB)
        top += 40
        parts.append(_text(_LEFT, top, code, mono=True))
        for index in range(len(pools.segments)):
            top += 12
            parts += _segment(pools, index, top)
            top += _HIGH
    return _svg(_WIDTH, round(top) + 24, parts)


def _segment(pools: PoolMap, index: int, top: float) -> Iterator[str]:
    segment = pools.segments[index]
    scale = 6.4 / KIB
    for slot in range(_SLOTS):
        left = _LEFT + slot * segment.stride * scale
        for number, (layer, roles) in enumerate(pools.places.items()):
            for role, place in roles.items():
                if place.segment != index:
                    continue
                x, width = left + place.offset * scale, place.nbytes * scale
                yield _box(x, top, width, _HIGH, MAPPED if number % 2 else RESERVED, LINE)
                yield _text(x + width / 2, top + 14, f"{layer[-1]} {role}", size=10, anchor="middle")
        yield _box(left, top, segment.stride * scale, _HIGH, "none", INK)
    yield _text(_WIDTH - 180, top + 14, f"segment {index}, group {segment.group}", size=12, colour=MUTED)


# The states ----------------------------------------------------------------------------------------------------------

_CENTRE: Final = {
    State.RESERVED: (110.0, 124.0),
    State.COMMITTED: (390.0, 124.0),
    State.ASLEEP: (670.0, 124.0),
    State.CLOSED: (390.0, 274.0),
}
_HALF: Final = (62.0, 20.0)
# How far an arrow swerves to its left: a pair of opposite ones must not lie on each other, none may cross a state.
_BEND: Final = {
    (State.RESERVED, State.ASLEEP): -150.0,
    (State.COMMITTED, State.ASLEEP): -28.0,
    (State.ASLEEP, State.COMMITTED): -28.0,
}
_LOOP_BELOW: Final = {State.CLOSED}


def states() -> str:
    """The diagram of `vmmcache.memory.states.TRANSITIONS`."""
    arrows: dict[tuple[State, State], list[Event]] = {}
    for state, events in TRANSITIONS.items():
        for event, after in events.items():
            arrows.setdefault((state, after), []).append(event)
    parts = [
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">',
        f'<path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>',
    ]
    for (state, after), caused in arrows.items():
        label = ", ".join(event.value for event in caused)
        parts += _loop(state, label) if state is after else _arrow(state, after, label)
    for state, (x, y) in _CENTRE.items():
        fill = COMMITTED if state is State.COMMITTED else RESERVED
        parts.append(_box(x - _HALF[0], y - _HALF[1], 2 * _HALF[0], 2 * _HALF[1], fill, INK, radius=10))
        parts.append(_text(x, y + 5, state.value, anchor="middle", colour=PAPER if fill == COMMITTED else INK))
    return _svg(780, 356, parts)


def _arrow(state: State, after: State, label: str) -> Iterator[str]:
    (x1, y1), (x2, y2) = _CENTRE[state], _CENTRE[after]
    length = math.hypot(x2 - x1, y2 - y1)
    bend = _BEND.get((state, after), 0.0)
    # The control point of the curve, beside the middle of the straight line.
    cx = (x1 + x2) / 2 - (y2 - y1) / length * bend
    cy = (y1 + y2) / 2 + (x2 - x1) / length * bend
    x1, y1 = _border(x1, y1, cx, cy)
    x2, y2 = _border(x2, y2, cx, cy)
    yield _curve(f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}")
    # The curve's middle, and above it if it swerves up, below if down, on top of it if it is straight.
    mx, my = (x1 + 2 * cx + x2) / 4, (y1 + 2 * cy + y2) / 4
    lift = 5 if not bend else (-6 if cy < (_CENTRE[state][1] + _CENTRE[after][1]) / 2 else 16)
    yield _text(mx, my + lift, label, anchor="middle", mono=True, halo=not bend)


def _border(x: float, y: float, towards_x: float, towards_y: float) -> tuple[float, float]:
    """Where the line from a state's centre leaves its box."""
    dx, dy = towards_x - x, towards_y - y
    scale = min(_HALF[0] / abs(dx) if dx else math.inf, _HALF[1] / abs(dy) if dy else math.inf)
    return x + dx * scale, y + dy * scale


def _loop(state: State, label: str) -> Iterator[str]:
    x, y = _CENTRE[state]
    side = 1 if state in _LOOP_BELOW else -1
    start, far = y + side * _HALF[1], y + side * (_HALF[1] + 44)
    yield _curve(f"M{x - 22} {start}C{x - 30} {far} {x + 30} {far} {x + 22} {start}")
    yield _text(x, far + (2 if side > 0 else 6), label, anchor="middle", mono=True, halo=True)


# Shapes --------------------------------------------------------------------------------------------------------------


def _curve(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{INK}" marker-end="url(#tip)"/>'


def _box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", radius: float = 1) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" fill="{fill}" '
        f'stroke="{stroke}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    colour: str = INK,
    anchor: str = "start",
    mono: bool = False,
    halo: bool = False,
) -> str:
    family = ' font-family="ui-monospace,DejaVu Sans Mono,monospace"' if mono else ""
    behind = f' paint-order="stroke" stroke="{PAPER}" stroke-width="5"' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{family}{behind}>'
        f"{escape(text)}</text>"
    )


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    # On paper of its own, so that it can be read on a dark page too.
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui,DejaVu Sans,sans-serif">'
    )
    return "\n".join((head, _box(0, 0, width, height, PAPER, radius=8), *parts, "</svg>", ""))


if __name__ == "__main__":
    for name, content in pictures().items():
        (Path(__file__).parent / name).write_text(content, encoding="utf-8")
