"""C1, C2, I10: what a connector is told of memory, as a whole: disjoint, sorted, committed, no block in two entries."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fine_host import FINE, FineHostDriver, UniformDriver
from tests.helpers import JournalDriver
from vmmcache import (
    AlignmentError,
    ConfigError,
    ConnectorNeeds,
    ExtensibleTensor,
    Registrable,
    RegistrationSet,
    StaleSegment,
)
from vmmcache.connectors.extents import Extent, Extents

SIZES = [5 * FINE, 3 * FINE, 8 * FINE]


@pytest.fixture
def tensor() -> ExtensibleTensor:
    return ExtensibleTensor(sum(SIZES), FineHostDriver(), segments=SIZES)


def test_a_tensor_is_registrable(tensor: ExtensibleTensor) -> None:
    assert isinstance(tensor, Registrable)
    assert not isinstance([], Registrable)
    tensor.close()


def test_a_set_is_all_that_is_committed(tensor: ExtensibleTensor) -> None:
    with tensor:
        assert len(RegistrationSet.of(tensor)) == 0
        tensor.commit([FINE, 0, 5])
        tensor.commit([3 * FINE, 0, 5])
        found = RegistrationSet.of(tensor)
        assert found[:] == tensor.registrable()
        assert (found.nbytes, found.segments) == (3 * FINE + 5, (0, 2))
        assert "3 entries" in repr(found)
        assert found[0] == tensor.registrable()[0]


def test_descriptors_that_share_bytes_or_are_out_of_order_are_refused(tensor: ExtensibleTensor) -> None:
    with tensor:
        tensor.commit(FINE)
        one, two, three = tensor.registrable()
        for wrong in ([two, one], [one, one], [one, dataclasses.replace(two, base=one.base + one.nbytes - 1), three]):
            with pytest.raises(ConfigError, match="share bytes or are not sorted"):
                RegistrationSet(wrong)


# Blocks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stride", "first", "second", "fits"),
    [
        (FINE, FINE, 3 * FINE, True),
        (3 * FINE // 2, 3 * FINE, 3 * FINE, True),  # both ends on a granule and on a block
        (3 * FINE // 2, 3 * FINE // 2, 3 * FINE, False),  # the border is on a granule, inside a block
        (FINE // 2, FINE // 2, FINE, True),  # two blocks in one granule
        (FINE, FINE, FINE + 1, False),  # not a whole number of blocks
    ],
)
def test_no_block_lies_in_two_entries(
    tensor: ExtensibleTensor, stride: int, first: int, second: int, fits: bool
) -> None:
    """One descriptor of a transfer lies in one registration, for NIXL on every transport and for Mooncake on TCP."""
    with tensor:
        tensor.commit([0, 0, first])
        tensor.commit([0, 0, second])
        if fits:
            assert RegistrationSet.of(tensor, strides=stride).nbytes == second
            assert RegistrationSet.of(tensor, strides=[1, 1, stride]).nbytes == second
        else:
            for strides in (stride, [1, 1, stride]):
                with pytest.raises(AlignmentError, match=f"a block of {stride} bytes in segment 2"):
                    RegistrationSet.of(tensor, strides=strides)


def test_an_entry_that_begins_inside_a_block_is_refused_alone_too(tensor: ExtensibleTensor) -> None:
    with tensor:
        tensor.commit(FINE)
        late = dataclasses.replace(tensor.registrable()[0], logical_offset=FINE // 2)
        with pytest.raises(AlignmentError, match="a block of 65536 bytes in segment 0"):
            RegistrationSet([late], strides=FINE)


def test_defragmenting_makes_blocks_whole_again(tensor: ExtensibleTensor) -> None:
    stride = 3 * FINE // 2
    with tensor:
        tensor.commit([0, 0, stride])
        tensor.commit([0, 0, 2 * stride])
        with pytest.raises(AlignmentError, match="defragment=True"):
            RegistrationSet.of(tensor, strides=stride)
        tensor.commit([0, 0, 2 * stride], defragment=True, keep=True)
        assert len(RegistrationSet.of(tensor, strides=stride)) == 1


@pytest.mark.parametrize("strides", [0, [1, 0, 1], [1], 1.5])
def test_strides_that_cannot_be_are_refused(tensor: ExtensibleTensor, strides: int) -> None:
    with tensor:
        tensor.commit(FINE)
        with pytest.raises(ConfigError, match="strides"):
            RegistrationSet.of(tensor, strides=strides)


def test_where_memory_comes_in_chunks_of_one_size_a_segment_of_several_is_not_whole() -> None:
    """C2: and nothing puts them together, so that a connector that needs it whole has to be refused."""
    with ExtensibleTensor(8 * FINE, UniformDriver(), segments=2) as tensor:
        tensor.commit([FINE, 2 * FINE], defragment=True)
        one, *others = RegistrationSet.of(tensor)
        needs = ConnectorNeeds(whole_segments=True)
        needs.check([one], "mori")
        with pytest.raises(AlignmentError, match="whole_segments"):
            needs.check(others, "mori")


# Growth and waking ----------------------------------------------------------------------------------------------------


def test_growth_appends_and_what_was_registered_stays(tensor: ExtensibleTensor) -> None:
    """C2: also where growth went on in the allocation that an entry lies in."""
    with tensor:
        tensor.commit([FINE // 2, 0, FINE])
        before = RegistrationSet.of(tensor)
        assert RegistrationSet.of(tensor).beyond(before)[:] == ()
        tensor.commit([2 * FINE, FINE, FINE])
        fresh = RegistrationSet.of(tensor).beyond(before)
        assert [(each.segment_index, each.logical_offset, each.nbytes) for each in fresh] == [
            (0, FINE // 2, FINE // 2),
            (0, FINE, FINE),
            (1, 0, FINE),
        ]
        inside = fresh[0]
        assert (inside.allocation_id, inside.allocation_offset) == (before[0].allocation_id, FINE // 2)
        assert (inside.whole, inside.aligned) == (False, False)


def test_what_is_gone_is_stale_and_not_silently_left_out(tensor: ExtensibleTensor) -> None:
    """C4."""
    with tensor:
        tensor.commit(2 * FINE)
        before = RegistrationSet.of(tensor)
        tensor.commit([2 * FINE, 0, 2 * FINE])
        for again in (RegistrationSet.of(tensor).beyond, RegistrationSet.of(tensor).same_as):
            with pytest.raises(StaleSegment, match="of segment 1"):
                again(before)
        tensor.commit(2 * FINE)
        # The same bytes at the same address, in another allocation: for growth that is another memory, for waking not.
        with pytest.raises(StaleSegment):
            RegistrationSet.of(tensor).beyond(before)
        assert [each.base for each in RegistrationSet.of(tensor).same_as(before)] == [each.base for each in before]


def test_after_waking_the_same_entries_are_described_anew(tensor: ExtensibleTensor) -> None:
    with tensor:
        tensor.commit([FINE // 2, 0, FINE])
        first = RegistrationSet.of(tensor)
        tensor.commit([FINE, 0, 2 * FINE])
        # As `Registration.refresh` would have it: the first granule of segment 0 in two entries.
        before = RegistrationSet(
            sorted([*first, *RegistrationSet.of(tensor).beyond(first)], key=lambda each: each.base)
        )
        tensor.release_physical()
        assert RegistrationSet.of(tensor)[:] == ()
        tensor.restore()
        again = RegistrationSet.of(tensor).same_as(before)
        assert [(each.base, each.nbytes, each.logical_offset) for each in again] == [
            (each.base, each.nbytes, each.logical_offset) for each in before
        ]
        assert {each.allocation_id for each in again}.isdisjoint(each.allocation_id for each in before)
        for each in again:
            tensor.check(each)


@given(
    st.lists(st.tuples(*(st.integers(0, size) for size in SIZES)), min_size=1, max_size=5),
    st.sampled_from([None, FINE, 2 * FINE]),
)
def test_whatever_the_growth_the_pieces_are_the_committed_bytes(
    commits: list[tuple[int, int, int]], chunk: int | None
) -> None:
    """Against a model: a set of bytes for each segment."""
    tensor = ExtensibleTensor(sum(SIZES), FineHostDriver(), segments=SIZES, chunk=chunk)
    pieces = RegistrationSet(())
    reached = [0, 0, 0]
    for commit in commits:
        reached = [max(pair) for pair in zip(reached, commit, strict=True)]
        tensor.commit(reached)
        fresh = RegistrationSet.of(tensor).beyond(pieces)
        kept = pieces[:]
        pieces = RegistrationSet(sorted([*pieces, *fresh], key=lambda each: each.base))
        assert set(kept) <= set(pieces)
    assert all(one.base + one.nbytes <= other.base for one, other in pairwise(pieces))
    for index, nbytes in enumerate(reached):
        own = [each for each in pieces if each.segment_index == index]
        assert sum(each.nbytes for each in own) == nbytes
        assert [each.logical_offset for each in own] == [sum(one.nbytes for one in own[:n]) for n in range(len(own))]
    for each in pieces:
        assert each.base == tensor.base_address + tensor.segment_offsets[each.segment_index] + each.logical_offset
        assert 0 <= each.allocation_offset <= each.allocation_nbytes - each.nbytes
    tensor.close()


# Where bytes are ------------------------------------------------------------------------------------------------------

pieces = st.lists(st.integers(1, 8), min_size=1, max_size=6)


@given(st.lists(pieces, min_size=1, max_size=3), st.integers(0, 3), st.integers(-2, 40), st.integers(0, 30))
def test_places_are_found_as_by_looking_at_every_byte(
    segments: list[list[int]], segment: int, offset: int, nbytes: int
) -> None:
    extents, owner, base = [], {}, 1000
    for index, sizes in enumerate(segments):
        at = 0
        for size in sizes:
            extents.append(Extent(base, size, index, at))
            owner.update({(index, at + byte): (base + byte, len(extents)) for byte in range(size)})
            base, at = base + size, at + size
        base += 5  # a hole between segments
    table = Extents(extents[::-1], "we")
    wanted = [owner.get((segment, offset + byte)) for byte in range(nbytes)]
    known = [each for each in wanted if each is not None]
    if nbytes and len(known) == nbytes and len({piece for _, piece in known}) == 1:
        assert table.address(segment, offset, nbytes) == known[0][0]
        assert table.holds(known[0][0], nbytes)
        table.require(known[0][0], nbytes)
        return
    with pytest.raises(AlignmentError if nbytes and len(known) == nbytes else ConfigError):
        table.address(segment, offset, nbytes)
    if wanted and wanted[0] is not None:
        address = wanted[0][0]
        there = {place for place, _ in owner.values()}
        whole = nbytes > 0 and all(address + byte in there for byte in range(nbytes))
        assert not table.holds(address, nbytes)
        with pytest.raises(AlignmentError if whole else ConfigError):
            table.require(address, nbytes)


@pytest.mark.parametrize("wrong", [[(0, 4, 0, 0), (3, 4, 0, 4)], [(0, 0, 0, 0)]])
def test_pieces_that_share_bytes_or_are_empty_are_refused(wrong: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(ConfigError, match="they"):
        Extents([Extent(*each) for each in wrong], "they")


# Many -----------------------------------------------------------------------------------------------------------------


def test_ten_thousand_segments_ask_the_driver_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a driver knows of an allocation was read when that was made; a set makes no call."""
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "64GiB")
    driver = JournalDriver()
    count = 4_000  # as many files as the usual limit of them allows
    with ExtensibleTensor(count * driver.granule, driver, segments=count) as tensor:
        tensor.commit(1)
        driver.names()
        found = RegistrationSet.of(tensor, strides=1)
        assert (len(found), driver.names()) == (count, [])
        place = math.isqrt(count)
        assert found.address(place, 0, 1) == tensor.base_address + tensor.segment_offsets[place]
