"""U5: the map on the terminal and as a picture says what the map says, also of ten thousand segments."""

from __future__ import annotations

import io
import random
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vmmcache.cli._map_picture import COMMITTED, GRID, LEASED, MAPPED, MOST_ROWS, RESERVED, WIDTH, picture
from vmmcache.cli._map_rows import covered, rows
from vmmcache.cli._map_text import MOST_ROWS as MOST_LINES
from vmmcache.cli._map_text import show
from vmmcache.memory.atlas import AddressMap, Found, TensorMap
from vmmcache.memory.atlas.tables import Busy, LeaseMap
from vmmcache.units import MIB, format_bytes

G = 2 * MIB
SVG = "{http://www.w3.org/2000/svg}"


def tensor(segments: list[tuple[int, int]], leased: int = 0, busy: Busy | None = None) -> TensorMap:
    """Sizes and committed granules of segments; memory as a tensor that has only grown would have it."""
    offset = 0
    allocations, leases = [], []
    for number, (size, committed) in enumerate(segments):
        if committed:
            allocations.append((offset * G, committed * G))
            if number < leased:
                leases.append(LeaseMap(offset * G, committed * G, f"owner {number % 5}"))
        offset += size
    return TensorMap(
        *("tensor", "cuda:0", "committed", 0x7F0000000000, offset * G, G, 1, 0),
        tuple((size * G, committed * G) for size, committed in segments),
        tuple(allocations),
        tuple(leases),
        busy,
    )


def many() -> TensorMap:
    chance = random.Random(5)
    return tensor([(16, chance.choice((0, 1, 5, 16))) for _ in range(10_000)], leased=2_000)


def drawn(*tensors: TensorMap) -> ET.Element:
    return ET.fromstring(picture(AddressMap(7, 1, 0.0, tensors), "a test <&>"))


def boxes(svg: ET.Element, fill: str) -> list[tuple[float, float, float, float]]:
    """Of the map itself; the first of each colour is the legend's."""
    found = [each for each in svg.iter(f"{SVG}rect") if each.get("fill") == fill]
    return [
        (float(each.attrib["x"]), float(each.attrib["y"]), float(each.attrib["width"]), float(each.attrib["height"]))
        for each in found[1:]
    ]


def printed(*tensors: TensorMap, width: int = 120, alive: bool = True, age_s: float = 1.0) -> str:
    out = io.StringIO()
    show(Console(file=out, width=width, highlight=False), Found(AddressMap(7, 1, 0.0, tensors), alive), age_s)
    return out.getvalue()


# How much is where ----------------------------------------------------------------------------------------------------

ranges = st.lists(st.integers(0, 60), unique=True).map(
    lambda cuts: [(low, high) for low, high in list(pairwise(sorted(cuts)))[::2]]
)


@given(ranges, st.integers(0, 30), st.integers(1, 40), st.integers(1, 12))
def test_covered_counts_each_byte(found: list[tuple[int, int]], start: int, size: int, cells: int) -> None:
    inside = {byte for low, high in found for byte in range(low, high)}
    borders = [start + size * cell // cells for cell in range(cells + 1)]
    expected = [len(inside & set(range(low, high))) for low, high in pairwise(borders)]
    assert covered(found, start, start + size, cells) == expected


@pytest.mark.parametrize("most", [1, 7, 40, 20_000])
def test_nothing_is_lost_in_rows(most: int) -> None:
    whole = many()
    found = rows(whole, most)
    assert len(found) <= most
    assert (found[0].start, found[-1].stop) == (0, whole.reserved)
    assert all(before.stop == after.start for before, after in pairwise(found))
    assert [(row.first, row.last) for row in found][-1][1] == 9_999
    for name, amount in (("committed", whole.committed), ("mapped", whole.mapped), ("leased", whole.leased)):
        assert sum(getattr(row, f"{name}_bytes") for row in found) == amount
        assert sum(high - low for row in found for low, high in getattr(row, name)) == amount
    assert sum(row.allocations for row in found) == len(whole.allocations)
    assert {row.most for row in found} <= {0, G, 5 * G, 16 * G}


def test_an_allocation_that_spans_two_segments_is_in_both_rows_and_begins_in_one() -> None:
    one = TensorMap(
        "tensor", "host", "committed", 1 << 40, 4 * G, G, 0, 0, ((3 * MIB, MIB), (5 * MIB, MIB)), ((G, G),), ()
    )
    first, second = rows(one, 40)
    assert (first.mapped, second.mapped) == ([(G, 3 * MIB)], [(3 * MIB, 2 * G)])
    assert (first.allocations, second.allocations) == (1, 0)


def test_where_segments_are_not_known_there_is_one_row() -> None:
    (row,) = rows(TensorMap("dropped", "host", "committed", 1 << 40, 4 * G, G, 0, 0, (), ((G, G),), ()), 40)
    assert (row.name, row.start, row.stop, row.mapped_bytes) == ("?", 0, 4 * G, G)


# The picture ----------------------------------------------------------------------------------------------------------


def test_a_box_is_where_the_bytes_are() -> None:
    svg = drawn(tensor([(8, 2), (8, 0), (4, 4)], leased=1))
    (wide, blank, narrow) = boxes(svg, RESERVED)
    assert narrow[2] == pytest.approx(wide[2] / 2, abs=0.1)
    assert wide[0] == blank[0] == narrow[0]
    first, last = boxes(svg, MAPPED)
    assert (first[0], first[1], first[3]) == (wide[0], wide[1], wide[3])
    assert first[2] == pytest.approx(wide[2] / 4, abs=0.1)
    assert last[1] == narrow[1]
    assert last[2] == pytest.approx(narrow[2], abs=0.1)
    assert [box[2] for box in boxes(svg, COMMITTED)] == [first[2], last[2]]
    (lease,) = boxes(svg, LEASED)
    assert (lease[0], lease[2]) == (first[0], first[2])
    words = [each.text or "" for each in svg.iter(f"{SVG}text")]
    assert "a test <&>" in words
    assert "4 MiB of 16 MiB, 4 MiB mapped, 1 allocation" in words
    assert any("at 0x7f0000000000" in text for text in words)


def test_ten_thousand_segments_are_a_picture_that_can_be_read() -> None:
    whole = many()
    text = picture(AddressMap(7, 1, 0.0, (whole,)), "many")
    assert len(text) < 250_000
    svg = ET.fromstring(text)
    assert float(svg.attrib["width"]) == WIDTH
    assert float(svg.attrib["height"]) < 1_200
    assert len(boxes(svg, RESERVED)) <= MOST_ROWS
    paths = list(svg.iter(f"{SVG}path"))
    # The area under the steps is the memory that is there.
    full = sum(width * height for _, _, width, height in boxes(svg, RESERVED))
    for fill, amount in ((MAPPED, whole.mapped), (COMMITTED, whole.committed)):
        area = sum(_area(each.attrib["d"]) for each in paths if each.get("fill") == fill)
        assert area / full == pytest.approx(amount / whole.reserved, rel=0.02)
    assert all(each.attrib["d"].count("H") <= GRID + 1 for each in paths)
    # Nothing lies outside.
    for x, y, width, height in (box for fill in (RESERVED, MAPPED, COMMITTED, LEASED) for box in boxes(svg, fill)):
        assert 0 <= x <= x + width <= WIDTH
        assert 0 <= y <= y + height <= float(svg.attrib["height"])


def _area(path: str) -> float:
    """Under the steps of ``M x y HxVy ... Z``."""
    x, foot = map(float, re.findall(r"M([\d.]+) ([\d.]+)", path)[0])
    area, y = 0.0, foot
    for across, down in re.findall(r"H([\d.]+)V([\d.]+)", path):
        area += (float(across) - x) * (foot - y)
        x, y = float(across), float(down)
    return area


def test_a_row_with_many_allocations_of_one_segment_is_steps_too() -> None:
    one = TensorMap(
        *("tensor", "host", "committed", 1 << 40, 1000 * G, G, 0, 0),
        ((1000 * G, 200 * G),),
        tuple((2 * place * G, G) for place in range(100)),
        (),
    )
    svg = drawn(one)
    assert boxes(svg, MAPPED) == []
    assert len(list(svg.iter(f"{SVG}path"))) == 3


# The terminal ---------------------------------------------------------------------------------------------------------


def test_ten_thousand_segments_fit_on_a_screen() -> None:
    whole = many()
    text = printed(whole)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES + 8
    assert max(map(len, lines[4:-3])) <= 120
    assert "10,000 segments" in text
    assert f"{len(whole.allocations):,} allocations" in text
    assert f"{format_bytes(whole.committed)} committed" in text
    assert re.search(r"leased to owner \d, owner \d, owner \d and 2 others", text)
    assert "0 B .. 32 MiB" in text
    first = next(line for line in lines if line.lstrip().startswith("0-"))
    assert set(first.split()[-1]) == {"█"}  # what is leased; most of it is
    assert set(lines[-4].split()[-1]) == {"▒"}


@pytest.mark.parametrize("width", [80, 88, 200])
def test_each_mark_is_a_place(width: int) -> None:
    lines = printed(tensor([(8, 2), (8, 0), (4, 4)], leased=1), width=width).splitlines()
    bars = [line.split()[-1] for line in lines if re.match(r"\s+[012]\s", line)]
    assert [bar.count("█") / len(bar) for bar in bars] == [pytest.approx(0.25, abs=0.13), 0, 0]
    assert set(bars[1]) == {"·"}
    assert set(bars[2]) == {"▒"}
    assert len(bars[2]) == pytest.approx(len(bars[0]) / 2, abs=1)
    assert max(map(len, lines[4:8])) <= width


def test_what_is_mapped_and_not_committed_is_told_apart() -> None:
    one = TensorMap("tensor", "host", "committed", 1 << 40, 8 * G, G, 0, G, ((8 * G, G),), ((0, 4 * G),), ())
    text = printed(one)
    bar = next(line.split()[-1] for line in text.splitlines() if re.match(r"\s+0\s", line))
    assert re.fullmatch("(▒+)(░+)(·+)", bar)
    assert (bar.count("▒"), bar.count("░"), bar.count("·")) == (6, 18, 24)
    assert "2 MiB that the driver refused to take back" in text
    assert "1 tensor: 16 MiB reserved, 2 MiB committed, 10 MiB of memory" in text


def test_a_process_that_has_ended_or_hangs_is_said_to() -> None:
    assert "process 7, as it was 1.0 s ago" in printed(tensor([(1, 1)]))
    assert "process 7 has ended" in printed(tensor([(1, 1)]), alive=False, age_s=600)
    assert "10 min ago" in printed(tensor([(1, 1)]), alive=False, age_s=600)
    assert "3 h ago" in printed(tensor([(1, 1)]), age_s=10_800)
    busy = tensor([(1, 1)], busy=Busy("commit", 35.04))
    assert "busy with commit for 35.0 s" in printed(busy)
    assert any("busy with commit for 35.0 s" in (each.text or "") for each in drawn(busy).iter(f"{SVG}text"))
