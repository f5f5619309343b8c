"""B2: growth is three VMM calls whatever the bytes, and giving back two and one wait, on both emulated vendors.

Times are for ``make bench``: a test that judged them would judge the machine.
"""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.emulated.growth import SEGMENTS, SIZES
from benchmarks.growth import VMM_CALLS, _counted, _emulated
from benchmarks.harness import Row
from tests.emulator.control import Vendor
from vmmcache.benchmarks.growth import measure


@pytest.fixture(scope="module", params=["cuda", "hip"])
def rows(request: pytest.FixtureRequest) -> list[Row]:
    vendor: Vendor = request.param
    return list(_emulated(vendor))


def test_growth_is_three_calls_whatever_the_bytes(rows: list[Row]) -> None:
    growth = [row for row in rows if "one segment grows by" in row.name]
    assert len(growth) == len(SIZES)
    assert {(row.figure, row.held) for row in growth} == {(3, True)}


def test_sleep_and_wake_are_two_and_three_calls_a_segment(rows: list[Row]) -> None:
    counts = [
        (row.figure, row.held) for row in rows if "segments go to sleep" in row.name or "segments wake" in row.name
    ]
    assert counts == [(2 * SEGMENTS, True), (3 * SEGMENTS, True)]


def test_time_is_compared_with_the_bare_calls(rows: list[Row]) -> None:
    timed = [row for row in rows if row.unit == "us"]
    assert len(timed) == 4
    for row in timed:
        assert row.against == "C loop"
        assert row.against_figure is not None
        assert row.against_figure > 0
        assert row.judged == row.figure - row.against_figure
        assert row.held == (row.judged <= 25)


def test_the_host_driver_makes_the_same_calls() -> None:
    assert [row.figure for row in measure()] == [3, 3, 5, 3 * SEGMENTS, 2 * SEGMENTS + 1, 3 * SEGMENTS]
    assert all(row.held for row in measure())


@pytest.mark.parametrize(
    ("changed", "held"),
    [
        ({}, True),
        ({"cuMemCreate": 2}, False),
        ({"cuMemMap": 0}, False),
        ({"cuMemUnmap": 1}, False),
        ({"cuCtxSynchronize": 2}, False),
        ({"cuCtxSynchronize": 0}, False),
        ({"cuCtxPushCurrent": 4}, False),
        ({"cuMemsetD8": SEGMENTS + 1}, False),
    ],
)
def test_a_call_too_many_or_too_few_is_a_missed_target(changed: dict[str, int], held: bool) -> None:
    calls = {f"cuMem{call}": 1 for call in VMM_CALLS[:3]}
    beside = {"cuCtxPushCurrent": 1, "cuCtxPopCurrent": 1, "cuCtxSynchronize": 1, "cuMemsetD8": 1}
    made = {name: count for name, count in (calls | beside | changed).items() if count}
    assert _counted("x", made, Counter(calls), "cu").held is held
