"""Sizes: read, written, rounded and checked without floating point."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vmmcache.errors import ConfigError
from vmmcache.units import GIB, KIB, MIB, TIB, align_down, align_up, as_count, format_bytes, parse_bytes

sizes = st.integers(0, 1 << 80)
steps = st.integers(1, 1 << 40)


@given(sizes, steps)
def test_rounding_finds_the_nearest_multiple_on_each_side(value: int, step: int) -> None:
    lower, upper = align_down(value, step), align_up(value, step)
    assert lower % step == upper % step == 0
    assert value - step < lower <= value <= upper < value + step


def test_rounding_is_exact_where_a_float_is_not() -> None:
    assert align_up((1 << 62) + 1, 2 * MIB) == (1 << 62) + 2 * MIB
    assert align_down((1 << 62) - 1, 2 * MIB) == (1 << 62) - 2 * MIB


@pytest.mark.parametrize("value", [0, 7, np.int64(7), np.uint8(7), torch.tensor(7)], ids=repr)
def test_whole_numbers_of_any_library_are_counts(value: object) -> None:
    count = as_count("n", value)
    assert type(count) is int
    assert count == value


@pytest.mark.parametrize(
    "value",
    [1.0, float("nan"), float("inf"), np.float64(2), "2", b"2", None, [2], Fraction(2), torch.tensor(2.0), True, False],
    ids=repr,
)
def test_what_is_no_whole_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^n=.*must be a whole number of blocks, not") as caught:
        as_count("n", value, unit="blocks")
    assert caught.value.field == "n"
    assert caught.value.value is value
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [3, 5])
def test_a_count_may_be_as_small_and_as_large_as_its_limits(value: int) -> None:
    assert as_count("n", value, minimum=3, maximum=5) == value


@pytest.mark.parametrize(("value", "limit"), [(2, "at least 3"), (-1, "at least 3"), (6, "at most 5")])
def test_a_count_outside_its_limits_is_refused_with_the_limit(value: int, limit: str) -> None:
    with pytest.raises(ConfigError, match=f"n={value}: must be {limit} bytes"):
        as_count("n", value, minimum=3, maximum=5)


def test_a_count_is_never_negative_unless_that_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        as_count("n", -1)
    assert as_count("n", -1, minimum=-1) == -1


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("60GiB", 60 * GIB),
        ("60GB", 60 * GIB),
        ("60g", 60 * GIB),
        ("512M", 512 * MIB),
        (" 1.5 GiB ", 3 * GIB // 2),
        ("0.5k", 512),
        ("2T", 2 * TIB),
        ("1P", 1024 * TIB),
        ("0.1TiB", TIB // 10),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "+1", "1e9", "nan", "inf", "1.5.5G", "1 2", "12EiB", "1,5G", "٣"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size; write for example 60GiB") as caught:
        parse_bytes(text, field="--quota")
    assert caught.value.field == "--quota"


@given(st.integers(0, 1 << 70))
def test_a_number_of_bytes_is_read_back_exactly(nbytes: int) -> None:
    assert parse_bytes(str(nbytes)) == nbytes


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([("K", KIB), ("M", MIB), ("G", GIB), ("T", TIB)]))
def test_a_decimal_fraction_is_read_without_a_float(thousandths: int, digits: int, unit: tuple[str, int]) -> None:
    text = f"{thousandths // 1000}.{thousandths % 1000:03}{'0' * digits}{unit[0]}"
    assert parse_bytes(text) == thousandths * unit[1] // 1000


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (17, "17 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (100 * KIB, "100 KiB"),
        (2 * MIB, "2 MiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (4 * TIB, "4 TiB"),
        (-2 * MIB, "-2 MiB"),
        (GIB + GIB // 4, "1.25 GiB"),
    ],
)
def test_sizes_are_written_in_the_largest_unit(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text
