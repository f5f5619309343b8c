"""The book of leases: who holds which range, in whole granules, and what revoking does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmcache.connectors.leases import LeaseBook, RegistrationLease
from vmmcache.errors import LeaseError

G = 16
"""A granule that keeps the numbers readable."""


def lease(
    book: LeaseBook,
    start: int,
    nbytes: int,
    owner: str = "nixl",
    on_revoke: Callable[[RegistrationLease], object] | None = None,
    segment_index: int = 0,
) -> RegistrationLease:
    made = RegistrationLease(
        book,
        owner=owner,
        segment_index=segment_index,
        start=start,
        address=0x1000 + start,
        nbytes=nbytes,
        generation=3,
        on_revoke=on_revoke,
    )
    book.take(made)
    return made


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook(G)


def test_a_lease_is_valid_until_it_is_released_once(book: LeaseBook) -> None:
    taken = lease(book, 0, 10)
    assert (taken.valid, len(book)) == (True, 1)
    assert "'nixl'" in repr(taken)
    assert "valid" in repr(taken)
    taken.release()
    taken.release()
    assert (taken.valid, len(book)) == (False, 0)
    assert "released" in repr(taken)


def test_a_context_manager_releases_also_when_it_fails(book: LeaseBook) -> None:
    with pytest.raises(KeyError), lease(book, 0, 10) as taken:
        raise KeyError
    assert not taken.valid


def test_releasing_one_lease_releases_no_other_on_the_same_range(book: LeaseBook) -> None:
    one, other = lease(book, 0, 10), lease(book, 0, 10)
    one.release()
    one.release()
    assert other.valid
    with pytest.raises(LeaseError):
        book.guard([(0, 1)])


@pytest.mark.parametrize(
    ("span", "held"),
    [
        ((0, 16), False),
        ((0, 15), False),
        ((16, 17), True),  # the granule in which the lease begins
        ((31, 32), True),
        ((32, 48), True),
        ((63, 64), True),  # the granule in which it ends
        ((64, 80), False),
        ((0, 100), True),
        ((40, 41), True),
    ],
)
def test_a_lease_owns_whole_granules(book: LeaseBook, span: tuple[int, int], held: bool) -> None:
    """C3: bytes 20 to 50, which are the granules from 16 to 64."""
    taken = lease(book, 20, 30)
    assert book.touching([span]) == ([taken] if held else [])


def test_a_refusal_names_the_owners_once_each_and_where(book: LeaseBook) -> None:
    """I9."""
    lease(book, 32, 16, "nixl", segment_index=2)
    lease(book, 0, 16, "mooncake")
    lease(book, 16, 16, "nixl")
    lease(book, 64, 16, "elsewhere")
    with pytest.raises(LeaseError, match="3 leases of nixl, mooncake") as caught:
        book.guard([(0, 48)])
    assert caught.value.owners == ("nixl", "mooncake")
    for part in ("16 B at 0x1020", "segment 2", "does not reach nixl, mooncake"):
        assert part in str(caught.value)


def test_nothing_is_refused_where_nothing_is_held(book: LeaseBook) -> None:
    book.guard([(0, 1 << 40)])
    lease(book, 0, 16)
    book.guard([])
    book.guard([(16, 1 << 40)])


def test_leases_of_a_segment_are_found(book: LeaseBook) -> None:
    one, _, three = (lease(book, 16 * index, 16, segment_index=index % 2) for index in range(3))
    assert book.on(0) == (one, three)


spans = st.tuples(st.integers(0, 200), st.integers(1, 60)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(spans, max_size=8), st.lists(spans, max_size=8))
def test_touching_finds_what_looking_at_every_pair_finds(
    held: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    """Ranges may overlap, nest and repeat, in any order."""
    book = LeaseBook(G)
    taken = [lease(book, start, stop - start) for start, stop in held]

    def granules(span: tuple[int, int]) -> set[int]:
        return {byte // G for byte in range(*span)}

    expected = [
        each for each, span in zip(taken, held, strict=True) if any(granules(span) & granules(other) for other in asked)
    ]
    assert book.touching(asked) == expected


# Revoking -------------------------------------------------------------------------------------------------------------


def test_a_callback_that_returns_has_let_go(book: LeaseBook) -> None:
    told: list[RegistrationLease] = []
    taken = lease(book, 0, 16, on_revoke=told.append)
    book.revoke([(0, 1)])
    assert told == [taken]
    assert not taken.valid


def test_a_callback_may_release_by_itself(book: LeaseBook) -> None:
    taken = lease(book, 0, 16, on_revoke=RegistrationLease.release)
    book.revoke([(0, 1)])
    assert not taken.valid


def test_a_callback_that_raises_has_not_let_go(book: LeaseBook) -> None:
    def busy(lease: RegistrationLease) -> None:
        raise TimeoutError("a transfer is running")

    taken = lease(book, 0, 16, "mooncake", on_revoke=busy)
    with pytest.raises(LeaseError, match="mooncake did not let go of segment 0: TimeoutError: a transfer") as caught:
        book.revoke([(0, 1)])
    assert caught.value.owners == ("mooncake",)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert taken.valid


def test_only_owners_in_the_way_are_told_each_once_in_the_order_taken(book: LeaseBook) -> None:
    told: list[str] = []
    for number, owner in enumerate("cab"):
        lease(book, 16 * number, 16, owner, on_revoke=lambda lease: told.append(lease.owner))
    lease(book, 64, 16, "elsewhere", on_revoke=lambda lease: told.append(lease.owner))
    book.revoke([(0, 48), (0, 16)])
    assert told == ["c", "a", "b"]
    assert len(book) == 1


def test_an_owner_that_cannot_be_told_stays_and_is_named_afterwards(book: LeaseBook) -> None:
    told: list[RegistrationLease] = []
    silent = lease(book, 0, 16, "silent")
    lease(book, 0, 16, "polite", on_revoke=told.append)
    book.revoke([(0, 16)])
    assert len(told) == 1
    with pytest.raises(LeaseError) as caught:
        book.guard([(0, 16)])
    assert caught.value.owners == ("silent",)
    assert str(caught.value).startswith("1 lease of silent holds bytes")
    assert str(caught.value).endswith("release them; revoke=True does not reach silent, for want of an on_revoke")
    silent.release()
    book.guard([(0, 16)])


def test_a_callback_may_release_others_which_are_then_not_told(book: LeaseBook) -> None:
    told: list[str] = []
    others: list[RegistrationLease] = []

    def let_go_of_all(lease: RegistrationLease) -> None:
        told.append(lease.owner)
        for other in others:
            other.release()

    others += [lease(book, 0, 16, owner, on_revoke=let_go_of_all) for owner in "ab"]
    book.revoke([(0, 16)])
    assert told == ["a"]
    assert len(book) == 0


def test_releasing_is_heard_once(book: LeaseBook) -> None:
    heard: list[int] = []
    book.on_drop = lambda: heard.append(len(book))
    taken = lease(book, 0, 16)
    taken.release()
    taken.release()
    assert heard == [0]


@given(
    st.integers(0, 5 * G),
    st.integers(1, 6 * G),
    st.lists(st.tuples(st.integers(0, 12 * G), st.integers(1, 3 * G)), max_size=3),
)
def test_a_shortened_lease_holds_all_before_the_first_granule_that_goes(
    start: int, nbytes: int, going: list[tuple[int, int]]
) -> None:
    """Granule by granule; and there is no moment in which neither of the two is in the book."""
    book, fewest = LeaseBook(G), [1]
    taken = lease(book, start, nbytes)
    book.on_count = lambda number: fewest.append(number)
    doomed = {byte // G for at, size in going for byte in range(at, at + size)}
    stays = [byte for byte in range(start, start + nbytes) if byte // G not in doomed]
    first = next((byte for byte in range(start, start + nbytes) if byte // G in doomed), start + nbytes)
    left = taken.shorten([(0x1000 + at, 0x1000 + at + size) for at, size in going])
    assert not taken.valid
    if first == start:
        assert (left, len(book)) == (None, 0)
    else:
        assert left is not None
        assert left.valid
        assert (left.address, left.nbytes, left.owner) == (0x1000 + start, first - start, "nixl")
        assert set(range(start, first)) <= set(stays)
        assert (min(fewest), len(book)) == (1, 1)
    assert taken.shorten([]) is None, "a lease that was given back has no rest"
