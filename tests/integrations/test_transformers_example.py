"""examples/transformers_generate.py as people run it, and what its picture says (B5)."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

import transformers_generate
from vmmcache.benchmarks.transformers import CACHES, Figure

SVG = "{http://www.w3.org/2000/svg}"


def test_the_command_compares_measures_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "figures.svg"
    assert transformers_generate.main(["--lengths", "64,256", "--rounds", "1", "--json", "--svg", str(svg)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["equal"] == {"llama": True, "gemma3_text": True, "falcon_h1": True}
    assert [(each["cache"], each["length"]) for each in printed["figures"]] == [
        (cache, length) for length in (64, 256) for cache in CACHES
    ]
    # Four layers, two heads of 64 numbers of four bytes, keys and values.
    assert [each["held"] for each in printed["figures"]] == [64 * 4096] * 4 + [256 * 4096] * 4
    assert all(each["seconds"] > 0 and each["peak"] > 0 for each in printed["figures"])
    assert len(ET.parse(svg).getroot().findall(f"{SVG}polyline")) == 4


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    transformers_generate._print(
        [Figure(cache, 10, 0.002, 3 << 20, 1 << 20) for cache in transformers_generate.COLOURS]
    )
    printed = capsys.readouterr().out
    assert printed.count("2.00 ms") == 4
    assert printed.count("3 MiB") == 4
    assert printed.count("3.00") == 4


def test_answers_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = torch.equal
    calls: list[int] = []

    def wrong(first: torch.Tensor, second: torch.Tensor) -> bool:
        calls.append(first.ndim)
        return equal(first, second + 1)

    monkeypatch.setattr(torch, "equal", wrong)
    assert not transformers_generate.answers_are_equal("llama")
    assert calls


def test_points_stand_where_the_figures_say() -> None:
    """Both axes begin at 0, a straight relation is a straight line, and everything is within the picture."""
    lengths = (100, 200, 400)
    measured = [
        Figure(cache, length, length * factor * 1e-5, 0, 1)
        for cache, factor in zip(CACHES, (1, 3, 4, 2), strict=True)
        for length in lengths
    ]
    root = ET.fromstring(transformers_generate.picture(measured))
    _, _, width, height = (float(number) for number in root.attrib["viewBox"].split())
    drawn = [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", line.attrib["points"])]
        for line in root.findall(f"{SVG}polyline")
    ]
    left, bottom = transformers_generate.place(0, 0, 400, 16)
    for factor, points in zip((1, 3, 4, 2), drawn, strict=True):
        for length, (x, y) in zip(lengths, points, strict=True):
            assert x - left == pytest.approx((width - left - 40) * length / 400, abs=0.1)
            assert bottom - y == pytest.approx((bottom - 40) * factor * length / 1600, abs=0.1)
            assert 0 < x < width
            assert 0 < y < height
    texts = {text.text for text in root.findall(f"{SVG}text")}
    assert {"100", "200", "400", "16", "0", *CACHES} <= texts
