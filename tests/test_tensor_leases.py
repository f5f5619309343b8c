"""C3, I9: a leased range is never unmapped, remapped or cut, by no operation; growth and the rest go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.helpers import JournalDriver, accounts, peek, poke
from vmmcache import ExtensibleTensor, LeaseError, RegistrationLease, StateError


@pytest.fixture
def driver() -> JournalDriver:
    return JournalDriver()


@pytest.fixture
def tensor(driver: JournalDriver) -> ExtensibleTensor:
    """Three segments of 8 granules, each with 4 in allocations of 1 and 3."""
    made = ExtensibleTensor(24 * driver.granule, driver, segments=3)
    made.commit(driver.granule)
    made.commit(4 * driver.granule)
    driver.names()
    return made


def in_granules(tensor: ExtensibleTensor, *granules: int) -> list[int]:
    return [each * tensor.granule for each in granules]


def test_a_lease_covers_what_is_committed_now(tensor: ExtensibleTensor) -> None:
    lease = tensor.lease(1, owner="nixl")
    assert (lease.owner, lease.segment_index, lease.generation) == ("nixl", 1, tensor.generation)
    assert (lease.address, lease.nbytes) == (tensor.base_address + tensor.segment_offsets[1], 4 * tensor.granule)
    tensor.commit(in_granules(tensor, 4, 6, 4))
    assert lease.nbytes == 4 * tensor.granule
    lease.release()
    tensor.close()


@pytest.mark.parametrize("state", ["reserved", "empty", "asleep", "closed"])
def test_nothing_can_be_leased_where_nothing_is_committed(driver: JournalDriver, state: str) -> None:
    tensor = ExtensibleTensor(8 * driver.granule, driver, segments=2)
    if state != "reserved":
        tensor.commit([0, 5])
    if state == "asleep":
        tensor.release_physical()
    if state == "closed":
        tensor.close()
    with pytest.raises(StateError, match=r"nothing committed|does not allow lease") as caught:
        tensor.lease(0, owner="nixl")
    assert caught.value.event == "lease"
    tensor.close()


REFUSED: dict[str, Callable[[ExtensibleTensor], None]] = {
    "shrink": lambda tensor: tensor.commit(in_granules(tensor, 4, 3, 4)),
    "shrink by a byte": lambda tensor: tensor.commit([4 * tensor.granule, 4 * tensor.granule - 1, 0]),
    "shrink to nothing": lambda tensor: tensor.commit(0),
    "shrink while another grows": lambda tensor: tensor.commit(in_granules(tensor, 8, 1, 8)),
    "defragment": lambda tensor: tensor.commit(4 * tensor.granule, defragment=True),
    "defragment and keep": lambda tensor: tensor.commit(4 * tensor.granule, defragment=True, keep=True),
    "defragment and grow": lambda tensor: tensor.commit(5 * tensor.granule, defragment=True, keep=True),
    "release_physical": lambda tensor: tensor.release_physical(),
    "release_physical with a backup": lambda tensor: tensor.release_physical(backup=True),
    "close": lambda tensor: tensor.close(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_touch_a_leased_range_is_refused_before_anything_changes(
    driver: JournalDriver, tensor: ExtensibleTensor, name: str
) -> None:
    lease = tensor.lease(1, owner="nixl")
    poke(lease.address, b"registered")
    before = tensor.state, tensor.committed, tensor.generation, tensor.allocations, accounts(driver)
    driver.names()
    with pytest.raises(LeaseError, match="nixl") as caught:
        REFUSED[name](tensor)
    assert caught.value.owners == ("nixl",)
    assert (tensor.state, tensor.committed, tensor.generation, tensor.allocations, accounts(driver)) == before
    assert driver.names() == []
    assert peek(lease.address, 10) == b"registered"
    lease.release()
    REFUSED[name](tensor)
    tensor.close()


def test_growth_under_a_lease_is_allowed_and_leaves_the_leased_allocations(tensor: ExtensibleTensor) -> None:
    lease = tensor.lease(1, owner="nixl")
    leased = [each for each in tensor.registrable() if each.segment_index == 1]
    tensor.commit(6 * tensor.granule)
    again = [each for each in tensor.registrable() if each.segment_index == 1]
    assert [(each.base, each.nbytes, each.allocation_id, each.generation) for each in again[:2]] == [
        (each.base, each.nbytes, each.allocation_id, each.generation) for each in leased
    ]
    for each in leased:
        tensor.check(each)
    assert lease.valid
    lease.release()
    tensor.close()


def test_growth_beyond_the_lease_may_go_back_again(tensor: ExtensibleTensor) -> None:
    lease = tensor.lease(1, owner="nixl")
    tensor.commit(6 * tensor.granule)
    tensor.commit(4 * tensor.granule)
    assert lease.valid
    with pytest.raises(LeaseError):
        tensor.commit(in_granules(tensor, 4, 3, 4))
    lease.release()
    tensor.close()


def test_other_segments_shrink_under_a_lease(tensor: ExtensibleTensor) -> None:
    lease = tensor.lease(1, owner="nixl")
    tensor.commit(in_granules(tensor, 1, 4, 0))
    assert tensor.physical_bytes == 5 * tensor.granule
    lease.release()
    tensor.close()


def test_a_neighbour_that_shares_a_granule_with_a_lease_cannot_shrink_in_it(driver: JournalDriver) -> None:
    """Contract: other segments may shrink where they share no granule with the lease."""
    half = 3 * driver.granule // 2
    tensor = ExtensibleTensor(4 * half, driver, segments=2)
    tensor.commit([2 * half, 2 * half])
    wide = ExtensibleTensor(2 * half, driver, segments=2)
    wide.commit(half)
    with wide.lease(0, owner="nixl"), tensor.lease(0, owner="nixl"):
        tensor.commit([2 * half, 0])
        wide.commit([half, driver.granule // 2])
        with pytest.raises(LeaseError):
            wide.commit([half, driver.granule // 2 - 1])
        assert wide.committed == (half, driver.granule // 2)
    wide.commit(0)
    wide.close()
    tensor.close()


def test_defragmenting_leaves_leased_segments_that_are_exact_alone(driver: JournalDriver) -> None:
    tensor = ExtensibleTensor(24 * driver.granule, driver, segments=3)
    tensor.commit(in_granules(tensor, 1, 4, 1))
    tensor.commit(in_granules(tensor, 4, 4, 4))
    leased = tensor.allocations[2]
    with tensor.lease(1, owner="nixl") as lease:
        poke(lease.address, b"stays")
        for keep in (True, False):
            tensor.commit(4 * driver.granule, defragment=True, keep=keep)
            assert leased in tensor.allocations
            assert peek(lease.address, 5) == b"stays"
    assert [each.nbytes // driver.granule for each in tensor.allocations] == [4, 4, 4]
    tensor.close()


def test_revoke_makes_owners_in_the_way_let_go_first(tensor: ExtensibleTensor) -> None:
    told: list[tuple[int, int]] = []

    def let_go(lease: RegistrationLease) -> None:
        # Before anything is touched: the memory is still there.
        assert peek(lease.address, 4) == b"here"
        told.append((lease.segment_index, tensor.physical_bytes))

    for offset in tensor.segment_offsets:
        poke(tensor.base_address + offset, b"here")
    leases = [tensor.lease(index, owner=f"owner {index}", on_revoke=let_go) for index in range(3)]
    tensor.commit(in_granules(tensor, 4, 0, 4), revoke=True)
    assert told == [(1, 12 * tensor.granule)]
    assert [lease.valid for lease in leases] == [True, False, True]
    tensor.release_physical(revoke=True)
    assert sorted(index for index, _ in told) == [0, 1, 2]
    tensor.close()


def test_close_revokes_too(tensor: ExtensibleTensor) -> None:
    lease = tensor.lease(0, owner="nixl", on_revoke=lambda lease: None)
    with pytest.raises(LeaseError):
        tensor.close()
    tensor.close(revoke=True)
    assert not lease.valid


def test_a_view_that_an_owner_makes_while_it_lets_go_keeps_the_tensor_from_closing(tensor: ExtensibleTensor) -> None:
    """T8: views are counted again when the owners have let go."""
    views: list[torch.Tensor] = []
    tensor.lease(0, owner="nixl", on_revoke=lambda lease: views.append(tensor.view()))
    with pytest.raises(StateError, match="1 live view"):
        tensor.close(revoke=True)
    assert tensor.state == "committed"
    views.clear()
    tensor.close()


def test_a_close_that_views_forbid_revokes_nothing(tensor: ExtensibleTensor) -> None:
    view = tensor.view()
    lease = tensor.lease(0, owner="nixl", on_revoke=lambda lease: None)
    with pytest.raises(StateError, match="1 live view"):
        tensor.close(revoke=True)
    assert lease.valid
    del view
    tensor.close(revoke=True)


@pytest.mark.parametrize("polite", [True, False])
def test_an_owner_that_does_not_let_go_is_respected(tensor: ExtensibleTensor, polite: bool) -> None:
    """I9: without a callback there is nobody to ask; a callback that raises says no."""

    def refuse(lease: RegistrationLease) -> None:
        raise ConnectionError("peer is reading")

    lease = tensor.lease(1, owner="mooncake", on_revoke=refuse if polite else None)
    before = tensor.allocations, tensor.committed, tensor.generation
    calls: list[Callable[[], None]] = [
        lambda: tensor.commit(0, revoke=True),
        lambda: tensor.release_physical(revoke=True),
        lambda: tensor.close(revoke=True),
    ]
    for call in calls:
        with pytest.raises(LeaseError, match="mooncake") as caught:
            call()
        assert caught.value.owners == ("mooncake",)
    assert lease.valid
    assert (tensor.allocations, tensor.committed, tensor.generation) == before
    lease.release()
    tensor.close()


def test_a_lease_of_shared_ground_is_told_when_the_neighbour_goes(driver: JournalDriver) -> None:
    half = 3 * driver.granule // 2
    tensor = ExtensibleTensor(2 * half, driver, segments=2)
    tensor.commit(half)
    lease = tensor.lease(0, owner="nixl", on_revoke=lambda lease: None)
    tensor.commit([half, 0], revoke=True)
    assert not lease.valid
    tensor.close()


def test_a_stale_descriptor_names_the_owners_of_its_segment(tensor: ExtensibleTensor) -> None:
    described = tensor.registrable()
    with tensor.lease(1, owner="nixl"):
        tensor.commit(in_granules(tensor, 1, 4, 4))
        with pytest.raises(LeaseError, match=r"registrable\(\) again") as caught:
            tensor.check(next(each for each in described if each.segment_index == 1))
        assert caught.value.owners == ("nixl",)
    tensor.close()
