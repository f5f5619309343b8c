"""The workload with nine life cycles: known results, and an effort that does not grow with the batch (B1, P13)."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Sequence
from types import FrameType

import pytest

from tests.planning.support import FIT, nine, nine_constraints, nine_layout
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Plan, PlanWarning, Request, plan
from vmmcache.planning.fit import LevelSearch
from vmmcache.units import GIB, MIB

QUOTA = 16 * GIB
GRANULE = 32 * MIB
BATCH_SIZES = (1, 32, 256, 1024)

pytestmark = pytest.mark.filterwarnings("ignore::vmmcache.planning.PlanWarning")


def fitted(constraints: Sequence[Batch], quota: int = QUOTA) -> Plan:
    return plan(nine_layout(), quota, GRANULE, constraints=constraints)


def calls(work: Callable[[], object]) -> int:
    """Calls of Python functions that `work` makes."""
    number = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal number
        number += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_fitted_plan_is_the_known_one(batch_size: int) -> None:
    expected = nine()["expected"]["by_batch_size"][str(batch_size)]
    planned = fitted(nine_constraints(batch_size))
    assert planned.resolved_constraints[1].requests[0].capacity == expected["fitted_capacity"]
    assert [group.min_slots for group in planned.groups] == expected["min_slots"]
    assert [group.slots for group in planned.groups] == expected["slot_counts"]
    assert planned.nbytes == planned.usable == QUOTA


def test_a_quota_that_is_large_enough_changes_nothing() -> None:
    case = nine()["expected"]["already_fitting"]
    constraints = nine_constraints(case["batch_size"])
    planned = fitted(constraints, case["gpu_quota_bytes"])
    assert planned.resolved_constraints == tuple(constraints)
    assert planned.reductions == ()
    assert planned.binding is None


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_copies_and_separate_requests_are_the_same_plan(batch_size: int) -> None:
    context, decode = nine_constraints(batch_size)
    separate = Batch([decode.requests[0], *(Request(4, 0) for _ in range(batch_size - 1))])
    one, other = fitted([context, decode]), fitted([context, separate])
    assert one.groups == other.groups
    assert one.nbytes == other.nbytes


def test_effort_does_not_depend_on_the_batch_size() -> None:
    """P13: 1023 equal requests are evaluated once, like one of them."""
    layout = nine_layout()

    def effort(batch_size: int) -> int:
        constraints = nine_constraints(batch_size)
        return calls(lambda: plan(layout, QUOTA, GRANULE, constraints=constraints))

    assert effort(1024) <= effort(32) * 1.1


def test_effort_with_separate_equal_requests_grows_by_little_more_than_counting_them() -> None:
    layout = nine_layout()
    context, decode = nine_constraints(1024)
    separate = Batch([decode.requests[0], *(Request(4, 0) for _ in range(1023))])
    together = calls(lambda: plan(layout, QUOTA, GRANULE, constraints=[context, decode]))
    apart = calls(lambda: plan(layout, QUOTA, GRANULE, constraints=[context, separate]))
    assert apart - together < 2 * 1023  # each is looked at when the resolved batch is written, and no more


def test_memory_does_not_grow_with_candidates_or_copies() -> None:
    layout = nine_layout()

    def peak(capacity: int, count: int) -> int:
        constraints = [Batch([Request(capacity, capacity - 4, FIT), Request(4, 0, count=count)])]
        tracemalloc.start()
        try:
            plan(layout, QUOTA, GRANULE, constraints=constraints)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1 << 20, 1)  # caches of the interpreter are filled
    assert peak(1 << 45, 1023) < peak(1 << 20, 1) + 4096


def fit_and_probes(layout: CacheLayout, quota: int, *requests: Request) -> tuple[int, int]:
    """Capacity of the first request, and how many lengths were tried."""
    probes: list[int] = []
    search = LevelSearch._granules

    def counted(self: LevelSearch, slots: list[list[int]]) -> int | None:
        probes.append(len(slots))
        return search(self, slots)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LevelSearch, "_granules", counted)
        planned = plan(layout, quota, GRANULE, constraints=[Batch(requests)])
    return planned.resolved_constraints[0].requests[0].capacity, len(probes)


@pytest.mark.parametrize(("capacity", "most"), [(1 << 20, 12), (1 << 26, 12), (1 << 45, 24)])
def test_a_fit_takes_few_probes_however_many_candidates_there_are(capacity: int, most: int) -> None:
    """B1: 32,768 candidates, then 64 times as many, then so many that the longest cannot be numbered.

    Bisection would take 17, 23 and 42. With the last it is needed, until what is left can be numbered.
    """
    fitted, probes = fit_and_probes(nine_layout(), QUOTA, Request(capacity, capacity - 4, FIT))
    assert fitted == 663328  # whatever was asked for
    assert 3 < probes <= most


def test_a_fit_takes_few_probes_where_the_need_is_far_from_straight() -> None:
    """A thousand requests that stop growing long before the longest: guesses fall short by thousands of levels."""
    layout = CacheLayout(32, [Attention([Buffer("key", 4096)])])
    many = Request(1 << 16, (1 << 16) - 1, FIT, count=1000)
    fitted, probes = fit_and_probes(layout, 8 * GIB, Request(1 << 28, (1 << 28) - 4, FIT), many)
    assert fitted == 65024
    assert probes <= 48  # bisection takes 25


def test_hybrid_variant_keeps_one_state_per_request() -> None:
    planned = plan(nine_layout("hybrid9"), QUOTA, GRANULE, constraints=nine_constraints(32))
    states = planned.groups[-1]
    assert [cycle.kind for cycle in states.life_cycles] == ["ssm"]
    assert states.min_slots == 32


@pytest.mark.filterwarnings("error::vmmcache.planning.PlanWarning")
def test_the_reduction_is_told_once_with_all_its_numbers() -> None:
    with pytest.warns(PlanWarning) as told:
        fitted(nine_constraints(256))
    (warning,) = told
    for part in ("constraints[1].requests[0]", "1048576 -> 635104", "1048572 -> 635100", f"quota {QUOTA} bytes"):
        assert part in str(warning.message)
    assert warning.filename == __file__ or "support" in warning.filename
