"""S2, S4, S12: what a caller may say about memory, and what that means exactly."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from vmmcache import ConfigError, MemoryBudget
from vmmcache.cache.budget import Mode
from vmmcache.units import GIB, MIB


def test_the_defaults_are_those_of_the_requirement() -> None:
    """S2, S4: 0.5 and 256 MiB, 1.0 where measured and 0.92 where estimated."""
    budget = MemoryBudget()
    assert (budget.margin_fraction, budget.margin_floor, budget.warmup_reserve) == (0.5, 256 * MIB, 0.1)
    assert budget.utilization_on("measured") == 1
    assert budget.utilization_on("estimated") == Fraction(23, 25)
    assert not budget.manual


@pytest.mark.parametrize("mode", ["measured", "estimated"])
def test_a_utilization_of_the_callers_holds_on_both_paths_and_exactly_as_written(mode: Mode) -> None:
    assert MemoryBudget(utilization=0.7).utilization_on(mode) == Fraction(7, 10)
    assert MemoryBudget(utilization=1).utilization_on(mode) == 1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"utilization": 0}, "utilization"),
        ({"utilization": -0.1}, "utilization"),
        ({"utilization": 1.0001}, "utilization"),
        ({"utilization": float("nan")}, "utilization"),
        ({"utilization": True}, "utilization"),
        ({"utilization": "0.9"}, "utilization"),
        ({"nbytes": 0}, "nbytes"),
        ({"nbytes": 1.5}, "nbytes"),
        ({"slots": 0}, "slots"),
        ({"slots": 2**31}, "slots"),
        ({"slots": []}, "slots"),
        ({"slots": [5, 0]}, r"slots\[1\]"),
        ({"slots": "55"}, "slots"),
        ({"margin_fraction": -0.5}, "margin_fraction"),
        ({"margin_fraction": float("inf")}, "margin_fraction"),
        ({"margin_floor": -1}, "margin_floor"),
        ({"warmup_reserve": 1}, "warmup_reserve"),
        ({"warmup_reserve": -0.1}, "warmup_reserve"),
        ({"graph_estimate": -1}, "graph_estimate"),
        ({"encoder_reserve": 0.5}, "encoder_reserve"),
        ({"nbytes": GIB, "slots": 7}, "nbytes"),
        ({"nbytes": GIB, "utilization": 0.9}, "nbytes"),
        ({"slots": 7, "utilization": 1.0}, "slots"),
    ],
)
def test_what_is_no_budget_is_refused_by_the_name_of_the_field(fields: dict[str, Any], named: str) -> None:
    """S12: asking for two sizes is an error, and so is a size of nothing."""
    with pytest.raises(ConfigError, match=rf"^{named}="):
        MemoryBudget(**fields)


def test_two_sizes_name_each_other() -> None:
    with pytest.raises(ConfigError, match=r"^nbytes=1073741824: .*utilization=0\.9.*give one of them"):
        MemoryBudget(nbytes=GIB, utilization=0.9)


def test_a_stated_size_wins_on_both_paths() -> None:
    """S12."""
    modes: tuple[Mode, ...] = ("measured", "estimated")
    for mode in modes:
        assert MemoryBudget(nbytes=GIB).sized_by(mode) == "bytes"
        assert MemoryBudget(slots=7).sized_by(mode) == "slots"
    assert MemoryBudget(nbytes=GIB).manual
    assert MemoryBudget(slots=7).manual
    assert MemoryBudget().sized_by("measured") == "measurement"
    assert MemoryBudget(utilization=0.5).sized_by("estimated") == "estimate"


def test_slots_are_one_number_for_all_groups_or_one_for_each() -> None:
    assert MemoryBudget().slots_of(3) is None
    assert MemoryBudget(slots=7).slots_of(3) == (7, 7, 7)
    assert MemoryBudget(slots=[7, 8]).slots_of(2) == (7, 8)
    with pytest.raises(ConfigError, match=r"^slots=\(7, 8\): has 2 numbers, and the layout has 3 pool groups"):
        MemoryBudget(slots=[7, 8]).slots_of(3)


def test_a_budget_is_a_value() -> None:
    assert MemoryBudget(slots=[7, 8]) == MemoryBudget(slots=(7, 8))
    assert hash(MemoryBudget(utilization=0.5)) == hash(MemoryBudget(utilization=0.5))
    assert MemoryBudget(utilization=Decimal("0.3")).utilization_on("measured") == Fraction(3, 10)  # type: ignore[arg-type]  # any number
    with pytest.raises(AttributeError):
        MemoryBudget().nbytes = 1  # type: ignore[misc]  # frozen, which is the point
