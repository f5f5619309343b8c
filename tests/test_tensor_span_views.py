"""Views across segments: exactly the bytes that were asked for, all of them committed (I6)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fine_host import FINE, FineHostDriver
from vmmcache import ConfigError, ExtensibleTensor, StateError
from vmmcache.memory.segments import Segments

SIZES = [2 * FINE, 3 * FINE // 2, 9 * FINE // 2]


@pytest.fixture
def tensor() -> ExtensibleTensor:
    return ExtensibleTensor(sum(SIZES), FineHostDriver(), segments=SIZES)


def test_the_storage_is_exactly_the_bytes_between(tensor: ExtensibleTensor) -> None:
    tensor.commit([2 * FINE, 3 * FINE // 2, 100])
    start, stop = FINE + 4, 7 * FINE // 2 + 100
    view = tensor.span_view(start, stop, torch.int32, (5, 2))
    storage = view.untyped_storage()
    assert (storage.data_ptr(), storage.nbytes()) == (tensor.base_address + start, stop - start)
    assert view.shape == (5, 2)
    tensor.span_view(0, 0)
    del view, storage
    tensor.close()


def test_a_byte_that_is_not_committed_is_named(tensor: ExtensibleTensor) -> None:
    tensor.commit([2 * FINE - 1, 3 * FINE // 2, 0])
    for start, stop, first in [
        (0, 2 * FINE, 2 * FINE - 1),  # one short of the border
        (2 * FINE - 1, 2 * FINE, 2 * FINE - 1),
        (2 * FINE, 7 * FINE // 2 + 1, 7 * FINE // 2),
        (5 * FINE, 5 * FINE + 1, 5 * FINE),
    ]:
        with pytest.raises(ConfigError, match=f"byte {first} is not committed"):
            tensor.span_view(start, stop)
    for start, stop in [(-1, 0), (1, 0), (0, sum(SIZES) + 1)]:
        with pytest.raises(ConfigError):
            tensor.span_view(start, stop)
    tensor.release_physical()
    with pytest.raises(ConfigError, match="byte 0 is not committed"):
        tensor.span_view(0, 1)
    tensor.close()
    with pytest.raises(StateError, match="view"):
        tensor.span_view(0, 0)


def test_runs_that_are_committed_are_seen_over_gaps_that_are_not(tensor: ExtensibleTensor) -> None:
    tensor.commit([FINE, FINE // 2, FINE])
    runs = tensor.strided_view(64, FINE // 2 - 64, 2 * FINE, 2, torch.int32)
    storage = runs.untyped_storage()
    assert (storage.data_ptr(), storage.nbytes()) == (tensor.base_address + 64, 5 * FINE // 2 - 64)
    assert (runs.shape, runs.stride()) == ((2, FINE // 8 - 16), (FINE // 2, 1))
    runs[0], runs[1] = 1, 2  # between them nothing is mapped: touching it would be the end
    assert tensor.segment_view(0, torch.int32)[: FINE // 8 + 1].tolist() == [0] * 16 + [1] * (FINE // 8 - 16) + [0]
    assert tensor.segment_view(1, torch.int32).tolist()[:17] == [0] * 16 + [2]
    assert tensor.strided_view(0, 0, 0, 3).shape == (3, 0)
    with pytest.raises(StateError, match="1 live views"):
        tensor.close()
    del runs, storage
    tensor.close()


def test_runs_have_to_be_committed_to_fit_and_to_be_whole_elements(tensor: ExtensibleTensor) -> None:
    tensor.commit([FINE, FINE // 2, FINE])
    for start, nbytes, stride, first in [
        (0, FINE + 1, 2 * FINE, FINE),
        (0, FINE, 2 * FINE, 5 * FINE // 2),  # the second one is shorter
        (FINE - 4, 8, 2 * FINE, FINE),
    ]:
        with pytest.raises(ConfigError, match=f"byte {first} is not committed"):
            tensor.strided_view(start, nbytes, stride, 2)
    for start, nbytes, stride, count, problem in [
        (0, 8, 7, 2, "stride"),  # they would overlap
        (0, 8, 8, 0, "count"),
        (0, 8, 4 * FINE, 3, f"3 runs end at byte {8 * FINE + 8} of {8 * FINE}"),
        (8 * FINE, 1, 1, 1, "nbytes"),
        (0, 6, 8, 2, "no whole elements of 4"),
        (0, 4, 10, 2, "no whole elements of 4"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            tensor.strided_view(start, nbytes, stride, count, torch.int32)
    with pytest.raises(ConfigError, match=r"torch\.dtype"):
        tensor.strided_view(0, 4, 4, 1, "int32")  # type: ignore[arg-type]  # refused, not guessed
    tensor.close()
    with pytest.raises(StateError, match="view"):
        tensor.strided_view(0, 4, 4, 1)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=6),
    st.integers(0, 36),
)
def test_backed_is_the_first_byte_that_is_missing(parts: list[tuple[int, int]], start: int) -> None:
    sizes = [size for size, _ in parts]
    committed = [min(size, nbytes) for size, nbytes in parts]
    there = [each < nbytes for size, nbytes in zip(sizes, committed, strict=True) for each in range(size)] + [False]
    start = min(start, sum(sizes))
    expected = next(place for place in range(start, len(there)) if not there[place])
    assert Segments(sum(sizes), sizes, 1).backed(committed, start) == expected
