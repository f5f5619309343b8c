"""What agreement costs (`vmmcache bench ranks`): counts and growth, and that the counts are those of the code."""

from __future__ import annotations

import pytest

from vmmcache.benchmarks._rank_messages import LIFE, cost, life
from vmmcache.benchmarks._rank_wire import counted


@pytest.mark.parametrize("size", [2, 5])
def test_the_messages_of_a_manager_s_life_are_those_that_are_made(size: int) -> None:
    made = [seen.messages for seen in counted(size)]
    assert made == [cost(agreement, number, size).messages for number, agreement in enumerate(LIFE, 1)]


def test_messages_and_bytes_of_a_rank_do_not_grow_with_the_number_of_ranks() -> None:
    few, many = life(8), life(512)
    assert many.messages / 512 < few.messages / 8
    # Longer numbers of ranks have more digits.
    assert many.nbytes / 512 < 1.05 * few.nbytes / 8
