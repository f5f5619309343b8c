"""A region: addresses that stay, runs of memory that come and go, and a guard that is asked first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.helpers import Accounts, JournalDriver, accounts, peek, poke
from vmmcache.errors import ConfigError, LeaseError
from vmmcache.memory.ranges import Range
from vmmcache.memory.region import Region


class Guard:
    """Remembers what it was asked for, and vetoes where told to."""

    def __init__(self) -> None:
        self.asked: list[Range] = []
        self.veto = False

    def __call__(self, ranges: Sequence[Range]) -> None:
        self.asked += ranges
        if self.veto:
            raise LeaseError("held", owners=("somebody",))


@pytest.fixture
def driver() -> JournalDriver:
    return JournalDriver()


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def region(driver: JournalDriver, guard: Guard) -> Region:
    return Region(driver, 8 * driver.granule - 5, guard=guard)


def extents(region: Region) -> list[Range]:
    granule = region.granule
    return [(each.offset // granule, (each.offset + each.nbytes) // granule) for each in region.mappings]


def grow(region: Region, *granules: Range) -> None:
    region.extend([(start * region.granule, stop * region.granule) for start, stop in granules], [])


def test_a_reservation_is_rounded_up_to_the_granule_and_costs_no_memory(driver: JournalDriver, region: Region) -> None:
    assert region.nbytes == 8 * driver.granule
    assert region.base % driver.granule == 0
    assert accounts(driver) == Accounts(reservations=1)
    assert driver.names() == []


def test_the_base_stays_from_construction_to_close(region: Region) -> None:
    """I1."""
    base = region.base
    grow(region, (0, 3))
    region.retain([])
    region.sleep([])
    region.restore([])
    region.close()
    assert region.base == base


def test_a_growth_backs_each_maximal_hole_with_one_allocation(driver: JournalDriver, region: Region) -> None:
    """T4."""
    grow(region, (1, 2), (4, 5))
    driver.names()
    grow(region, (0, 8))
    assert driver.names() == ["create", "map", "grant"] * 3
    assert extents(region) == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 8)]


def test_of_two_spans_that_share_a_granule_the_first_backs_it(region: Region) -> None:
    grow(region, (0, 2), (1, 4))
    assert extents(region) == [(0, 2), (2, 4)]


def test_growth_of_what_is_there_only_zeroes_what_becomes_visible(driver: JournalDriver, region: Region) -> None:
    """I7."""
    grow(region, (0, 2))
    poke(region.base, b"dirt" * 4)
    driver.names()
    region.extend([(0, region.granule)], [(4, 8)])
    assert driver.names() == ["zero", "synchronise"]
    assert peek(region.base, 16) == b"dirt\0\0\0\0dirtdirt"


def test_chunks_bound_each_allocation_and_are_granted_in_one_call(driver: JournalDriver, guard: Guard) -> None:
    region = Region(driver, 8 * driver.granule, guard=guard, chunk=2 * driver.granule)
    grow(region, (1, 6))
    assert extents(region) == [(1, 3), (3, 5), (5, 6)]
    assert driver.names() == ["create", "map", "create", "map", "create", "map", "grant"]


def test_retain_gives_back_what_touches_no_span(driver: JournalDriver, region: Region) -> None:
    """T5: an allocation goes back as a whole or not at all."""
    grow(region, (0, 2))
    grow(region, (2, 4))
    grow(region, (4, 6))
    region.retain([(0, 2 * region.granule + 1)])
    assert extents(region) == [(0, 2), (2, 4)]
    assert region.physical_bytes == accounts(driver).used == 4 * region.granule


def test_every_giving_back_waits_for_the_device_once(driver: JournalDriver, region: Region) -> None:
    """I8."""
    grow(region, (0, 2))
    grow(region, (2, 4))
    driver.names()
    region.retain([])
    assert driver.names() == ["synchronise", "unmap", "release", "unmap", "release"]


def test_nothing_to_give_back_asks_nothing_of_the_device(driver: JournalDriver, region: Region) -> None:
    grow(region, (0, 2))
    driver.names()
    region.retain([(0, 2 * region.granule)])
    assert driver.names() == []
    assert region.generation == 0


def test_restore_backs_the_very_runs_that_went_to_sleep(region: Region) -> None:
    """I10."""
    grow(region, (0, 1))
    grow(region, (1, 4))
    grow(region, (6, 7))
    before = extents(region)
    everything = [(0, region.nbytes)]
    region.sleep(everything)
    assert (extents(region), region.physical_bytes) == ([], 0)
    region.restore([])
    assert extents(region) == before


def test_a_run_that_a_cut_left_too_long_comes_back_only_as_long_as_needed(region: Region) -> None:
    grow(region, (0, 4))
    region.sleep([(0, 2 * region.granule)])
    region.restore([])
    assert extents(region) == [(0, 2)]


def test_backed_says_where_the_first_hole_is(region: Region) -> None:
    grow(region, (0, 1))
    grow(region, (1, 2))
    grow(region, (3, 4))
    granule = region.granule
    assert region.backed(0, 4 * granule) == 2 * granule
    assert region.backed(5, granule) == granule
    assert region.backed(2 * granule, 4 * granule) == 2 * granule
    assert region.backed(3 * granule, 4 * granule) == 4 * granule


def test_moving_keeps_contents_and_address_in_one_allocation(driver: JournalDriver, region: Region) -> None:
    grow(region, (0, 1))
    grow(region, (1, 3))
    poke(region.base + region.granule - 2, b"across")
    region.move([(0, 2 * region.granule)], fresh=[], kept=[(0, 2 * region.granule)])
    assert peek(region.base + region.granule - 2, 6) == b"across"
    assert extents(region) == [(0, 2)]
    # What was exchanged is owed, and goes back with the next operation.
    assert region.physical_bytes == 5 * region.granule
    region.retain([(0, 2 * region.granule)])
    assert accounts(driver) == Accounts(2 * region.granule, files=1, descriptors=1, reservations=1, mappings=1)


def test_a_growth_that_fails_half_way_leaves_the_region_as_it_was(driver: JournalDriver, region: Region) -> None:
    """I4: the second span ends past the reservation, which is found out when the first is backed already."""
    grow(region, (0, 1))
    before = accounts(driver), extents(region)
    with pytest.raises(ConfigError, match="past the reservation"):
        grow(region, (2, 4), (7, 9))
    assert (accounts(driver), extents(region)) == before
    grow(region, (2, 4), (7, 8))
    assert extents(region) == [(0, 1), (2, 4), (7, 8)]
