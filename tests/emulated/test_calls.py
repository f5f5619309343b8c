"""How many calls of the vendor's library an operation makes, and in which order: from the library's own journal."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.emulated.vendor import CUDA, UNIFORM, function, opened
from tests.emulator.control import Control
from vmmcache import ExtensibleTensor, VmmDriver

VMM: Final = [function(verb) for verb in ("create", "map", "grant")]
ZERO, WAIT, UNMAP, RELEASE, FREE = map(function, ("zero", "synchronise", "unmap", "release", "free"))
ENTER: Final = ["cuCtxPushCurrent"] if CUDA else ["hipGetDevice", "hipSetDevice"]
LEAVE: Final = ["cuCtxPopCurrent"] if CUDA else ["hipSetDevice"]

pytestmark = pytest.mark.skipif(UNIFORM, reason="with allocations of one size, growth is two calls a granule")


@pytest.fixture
def driver() -> VmmDriver:
    """The second device's, because a thread is on HIP's first one anyway."""
    return opened(1)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("granules", [1, 5, 40])
def test_growth_is_three_calls_a_segment_whatever_the_bytes(
    driver: VmmDriver, control: Control, segments: int, granules: int
) -> None:
    """B2, T4: create, map, grant; then the new bytes are zeroed, and waited for once."""
    granule = driver.granule
    tensor = ExtensibleTensor(128 * granule * segments, driver, segments=segments)
    for already in (0, granules):
        mark = control.mark()
        tensor.commit((already + granules) * granule)
        assert control.calls(mark) == [*ENTER, *VMM * segments, *[ZERO] * segments, WAIT, *LEAVE]
    tensor.close()


@pytest.mark.parametrize("allocations", [1, 2, 5])
def test_release_is_two_calls_an_allocation_and_one_wait(driver: VmmDriver, control: Control, allocations: int) -> None:
    """B2, I8: the device is waited for before the first of them."""
    granule = driver.granule
    tensor = ExtensibleTensor(64 * granule, driver)
    for each in range(allocations):
        tensor.commit((each + 1) * 3 * granule)
    mark = control.mark()
    tensor.release_physical()
    assert control.calls(mark) == [*ENTER, WAIT, *[UNMAP, RELEASE] * allocations, *LEAVE]
    mark = control.mark()
    tensor.restore()
    assert control.calls(mark) == [*ENTER, *VMM * allocations, ZERO, WAIT, *LEAVE]
    mark = control.mark()
    tensor.close()
    assert control.calls(mark) == [*ENTER, WAIT, *[UNMAP, RELEASE] * allocations, FREE, *LEAVE]


def test_shrink_waits_once_and_gives_back_what_lies_wholly_beyond(driver: VmmDriver, control: Control) -> None:
    granule = driver.granule
    tensor = ExtensibleTensor(64 * granule, driver, chunk=granule)
    tensor.commit(4 * granule)
    mark = control.mark()
    tensor.commit(granule + 1)
    assert control.calls(mark) == [*ENTER, WAIT, *[UNMAP, RELEASE] * 2, *LEAVE]
    tensor.close()


def test_a_chunk_is_two_calls_and_a_run_one_grant(driver: VmmDriver, control: Control) -> None:
    """T4."""
    granule = driver.granule
    tensor = ExtensibleTensor(64 * granule, driver, chunk=granule)
    mark = control.mark()
    tensor.commit(6 * granule)
    assert control.calls(mark) == [*ENTER, *VMM[:2] * 6, VMM[2], ZERO, WAIT, *LEAVE]
    tensor.close()


def test_looking_is_no_call(driver: VmmDriver, control: Control) -> None:
    tensor = ExtensibleTensor(64 * driver.granule, driver)
    tensor.commit(3 * driver.granule)
    mark = control.mark()
    segment = tensor.registrable()[0]
    tensor.check(segment)
    lease = tensor.lease(0, "a connector")
    lease.release()
    assert repr(tensor)
    assert (tensor.committed_bytes, tensor.physical_bytes) == (3 * driver.granule,) * 2
    assert control.calls(mark) == []
    tensor.close()


def test_whole_mappings_are_granted_from_the_start_of_the_first(driver: VmmDriver, control: Control) -> None:
    """D5, and the access is the local device's alone."""
    granule = driver.granule
    tensor = ExtensibleTensor(64 * granule, driver, chunk=2 * granule)
    tensor.commit(2 * granule)
    mark = control.mark()
    tensor.commit(7 * granule)
    (grant,) = [record for record in control.journal(mark) if record.call == VMM[2]]
    assert grant.arguments["ptr"] == tensor.base_address + 2 * granule
    assert grant.arguments["size"] == 5 * granule
    assert grant.arguments["count"] == 1
    assert grant.arguments["location"] == "1:1"
    tensor.close()


def test_an_operation_makes_no_context_and_no_stream(driver: VmmDriver, control: Control) -> None:
    """D7: never a private context."""
    mark = control.mark()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(driver.granule)
    tensor.commit(3 * driver.granule, defragment=True, keep=True)
    tensor.release_physical(backup=True)
    tensor.restore()
    tensor.close()
    calls = Counter(control.calls(mark))
    assert not [call for call in calls if "CtxCreate" in call or "Stream" in call or "CtxSet" in call]
    assert calls[ENTER[0]] == 6  # once to reserve addresses, and once for each of five operations
