"""A region asks its guard first, counts its generations, and allows nothing once it is closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.helpers import Accounts, JournalDriver, accounts, peek, poke
from vmmcache.errors import LeaseError, StateError
from vmmcache.memory.ranges import Range
from vmmcache.memory.region import Region
from vmmcache.memory.states import State


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


@pytest.mark.parametrize("event", ["retain", "sleep", "rebuild", "move", "close"])
def test_the_guard_is_asked_before_anything_is_touched(
    driver: JournalDriver, guard: Guard, region: Region, event: str
) -> None:
    """I9."""
    grow(region, (0, 2))
    poke(region.base, b"kept")
    before = accounts(driver), extents(region), region.generation, region.state
    driver.names()
    guard.asked.clear()
    guard.veto = True
    runs = [(0, 3 * region.granule)]
    calls: dict[str, Callable[[], None]] = {
        "retain": lambda: region.retain([]),
        "sleep": lambda: region.sleep([]),
        "rebuild": lambda: region.rebuild(runs, []),
        "move": lambda: region.move(runs, [], []),
        "close": region.close,
    }
    with pytest.raises(LeaseError, match="held"):
        calls[event]()
    assert guard.asked == [(0, 2 * region.granule)]
    assert driver.names() == []
    assert (accounts(driver), extents(region), region.generation, region.state) == before
    assert peek(region.base, 4) == b"kept"


def test_growing_asks_no_guard(guard: Guard, region: Region) -> None:
    guard.veto = True
    grow(region, (0, 2))
    assert guard.asked == []


def test_the_generation_rises_when_memory_goes_and_only_then(region: Region) -> None:
    """C4."""
    grow(region, (0, 2))
    assert region.generation == 0
    region.sleep([(0, region.granule)])
    asleep = region.generation
    assert asleep > 0
    region.restore([])
    assert region.generation == asleep
    region.rebuild([(0, region.granule)], [])
    assert region.generation > asleep


def test_allocation_ids_are_never_used_again(region: Region) -> None:
    """C4: also at the same address and size."""
    seen: set[int] = set()
    for _ in range(20):
        grow(region, (0, 2))
        (allocation,) = region.allocations
        assert allocation.id not in seen
        seen.add(allocation.id)
        region.retain([])


def test_close_gives_back_everything_and_the_addresses_last(driver: JournalDriver, region: Region) -> None:
    """I2, I3."""
    grow(region, (0, 2))
    grow(region, (4, 5))
    region.close()
    assert accounts(driver) == Accounts()
    region.close()
    assert region.state is State.CLOSED


@pytest.mark.parametrize("event", ["extend", "retain", "sleep", "restore", "rebuild", "move"])
def test_a_closed_region_allows_nothing_and_calls_nobody(driver: JournalDriver, region: Region, event: str) -> None:
    region.close()
    driver.names()
    nothing: list[Range] = []
    with pytest.raises(StateError, match="closed") as caught:
        getattr(region, event)(*[nothing] * {"extend": 2, "rebuild": 2, "move": 3}.get(event, 1))
    assert caught.value.state == "closed"
    assert driver.names() == []
