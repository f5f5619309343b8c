"""Wrong input: a typed error that names the field, before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import Accounts, JournalDriver, accounts
from vmmcache import ConfigError, DriverUnavailable, ExtensibleTensor, RegistrableSegment, VmmCacheError

NO_COUNTS = [1.0, float("nan"), float("inf"), True, None, "5", b"5", 5j, object, torch.tensor(1.5)]


@pytest.fixture
def driver() -> JournalDriver:
    return JournalDriver()


@pytest.fixture
def tensor(driver: JournalDriver) -> ExtensibleTensor:
    made = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    made.commit(driver.granule)
    driver.names()
    return made


# Construction ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [0, -1, -(1 << 70), *NO_COUNTS], ids=repr)
def test_a_capacity_is_a_positive_number_of_bytes(driver: JournalDriver, capacity: Any) -> None:
    with pytest.raises(ConfigError, match=r"^capacity=") as caught:
        ExtensibleTensor(capacity, driver)
    assert caught.value.field == "capacity"
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("capacity", [1 << 47, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 64, (1 << 64) + 4096, 1 << 200])
def test_a_capacity_beyond_every_address_space_is_refused(driver: JournalDriver, capacity: int) -> None:
    """Not wrapped into a small one on its way to C."""
    with pytest.raises(VmmCacheError) as caught:
        ExtensibleTensor(capacity, driver)
    assert len(str(caught.value)) > 20
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("segments", [0, -1, 3, [], [5], [16 << 21, 0], [float("nan")], "16", *NO_COUNTS], ids=repr)
def test_segments_are_a_count_or_sizes_that_sum_to_the_capacity(driver: JournalDriver, segments: Any) -> None:
    with pytest.raises(ConfigError, match=r"segments|capacity"):
        ExtensibleTensor(16 * driver.granule, driver, segments=segments)
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize(
    "chunk", [0, -1, 1, (2 << 20) - 1, *(each for each in NO_COUNTS if each is not None)], ids=repr
)
def test_a_chunk_is_at_least_a_granule(driver: JournalDriver, chunk: Any) -> None:
    with pytest.raises(ConfigError, match=r"^chunk="):
        ExtensibleTensor(16 * driver.granule, driver, chunk=chunk)
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize(
    "device", ["", ":0", "host:", "host:x", "host:-1", "host:0:1", "host:1.5", 0, None, b"host"], ids=repr
)
def test_a_device_is_a_name_and_perhaps_an_index(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device=.*\"cuda:0\""):
        ExtensibleTensor(1 << 30, device=device)


@pytest.mark.parametrize(
    ("device", "reason"), [("nonesuch", "no driver of that name.*installed: .*host"), ("host:1", "no host device 1")]
)
def test_a_device_that_there_is_not_is_a_reason_with_a_cure(device: str, reason: str) -> None:
    with pytest.raises(DriverUnavailable, match=reason) as caught:
        ExtensibleTensor(1 << 30, device=device)
    assert caught.value.driver == device.partition(":")[0]
    assert caught.value.cure


# commit ---------------------------------------------------------------------------------------------------------------

BAD_TARGETS: list[Any] = [
    -1,
    (16 << 20) + 1,
    1 << 70,
    *NO_COUNTS,
    [],
    [1],
    [1, 2, 3],
    [1, -1],
    [1, (16 << 20) + 1],
    [1, 1.0],
    [float("nan"), 1],
    [1, None],
    np.array([1, 2]),
    {0: 1, 1: 1},
]


@pytest.mark.parametrize("nbytes", BAD_TARGETS, ids=repr)
@pytest.mark.parametrize(
    "options", [{}, {"defragment": True}, {"defragment": True, "keep": True}, {"revoke": True}], ids=str
)
def test_a_size_that_no_segment_can_have_is_refused_before_anything_is_touched(
    driver: JournalDriver, tensor: ExtensibleTensor, nbytes: Any, options: dict[str, bool]
) -> None:
    before = tensor.committed, tensor.generation, tensor.allocations, accounts(driver)
    lease = tensor.lease(0, owner="nixl", on_revoke=lambda lease: None)
    with pytest.raises(ConfigError, match="nbytes"):
        tensor.commit(nbytes, **options)
    assert lease.valid
    lease.release()
    assert (tensor.committed, tensor.generation, tensor.allocations, accounts(driver)) == before
    assert driver.names() == []
    tensor.close()


def test_the_largest_and_the_smallest_sizes_are_fine(tensor: ExtensibleTensor) -> None:
    tensor.commit(8 * tensor.granule)
    assert tensor.committed_bytes == tensor.capacity
    sizes: Any = (0, np.int64(8 * tensor.granule))
    tensor.commit(sizes)
    assert tensor.committed == (0, 8 * tensor.granule)
    tensor.commit(0)
    tensor.close()


@pytest.mark.parametrize("number", [np.int64, np.uint64, torch.tensor], ids=lambda kind: kind.__name__)
def test_numbers_of_other_libraries_become_ints_before_anybody_else_sees_them(
    driver: JournalDriver, number: Callable[[int], Any]
) -> None:
    """ctypes takes none of them, and neither does JSON."""
    granule = driver.granule
    with ExtensibleTensor(number(16 * granule), driver, segments=number(2), chunk=number(granule)) as tensor:
        tensor.commit(number(granule + 1))
        assert type(tensor.capacity) is int
        assert json.loads(json.dumps([tensor.capacity, tensor.segment_sizes, tensor.committed])) == [
            16 * granule,
            [8 * granule] * 2,
            [granule + 1] * 2,
        ]
    with pytest.raises(ConfigError, match="nbytes"):
        driver.reserve(granule + 0.5)  # type: ignore[arg-type]  # that is the point
    reservation = driver.reserve(number(granule))
    allocation = driver.create(number(granule))
    assert type(reservation.nbytes) is type(allocation.nbytes) is int
    driver.release(allocation)
    driver.free(reservation)


def test_a_message_names_the_segment_the_number_and_the_limit(tensor: ExtensibleTensor) -> None:
    with pytest.raises(ConfigError) as caught:
        tensor.commit([5, 16777217])
    assert str(caught.value) == "nbytes[1]=16777217: must be at most 16777216 bytes"
    tensor.close()


# lease and check ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [-1, 2, 1.0, None, "0", True], ids=repr)
def test_a_lease_is_on_a_segment_that_there_is(tensor: ExtensibleTensor, index: Any) -> None:
    with pytest.raises(ConfigError, match=r"^segment="):
        tensor.lease(index, owner="nixl")
    tensor.close()


@pytest.mark.parametrize("owner", ["", None, 5, b"nixl", True], ids=repr)
def test_a_lease_has_an_owner_that_refusals_can_name(tensor: ExtensibleTensor, owner: Any) -> None:
    with pytest.raises(ConfigError, match=r"^owner="):
        tensor.lease(0, owner=owner)
    tensor.close()


def test_a_lease_is_revoked_by_something_that_can_be_called(tensor: ExtensibleTensor) -> None:
    with pytest.raises(ConfigError, match=r"^on_revoke=5"):
        tensor.lease(0, owner="nixl", on_revoke=5)  # type: ignore[arg-type]  # the point
    tensor.close()


@pytest.mark.parametrize("segment", [None, 5, "0", (1, 2)], ids=repr)
def test_only_a_descriptor_can_be_checked(tensor: ExtensibleTensor, segment: Any) -> None:
    with pytest.raises(ConfigError, match=r"^segment="):
        tensor.check(segment)
    assert isinstance(tensor.registrable()[0], RegistrableSegment)
    tensor.close()
