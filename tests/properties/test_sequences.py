"""Whatever the sequence of operations: how memory is cut, and what was in it before, makes no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fine_host import FINE, FineHostDriver, UniformDriver
from tests.helpers import peek, poke
from vmmcache import ExtensibleTensor, VmmDriver
from vmmcache.testing import DirtyDriver, RecordingDriver
from vmmcache.testing.model import Model
from vmmcache.testing.strategies import Commit, Configuration, Operation, Sleep, configurations, operations


@pytest.fixture(autouse=True, scope="module")
def _enough_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VMMCACHE_HOST_MEMORY", "64MiB")
        yield


def look(tensor: ExtensibleTensor, model: Model) -> list[list[int]]:
    """The visible bytes at every border of every segment."""
    return [
        [peek(tensor.base_address + start + place, 1)[0] for place in model.places(index) if place < nbytes]
        for index, (start, nbytes) in enumerate(zip(model.starts, tensor.committed, strict=True))
    ]


def history(
    configuration: Configuration, sequence: list[Operation], open_driver: Callable[[], VmmDriver]
) -> list[tuple[object, ...]]:
    """What can be seen after each operation. Everything that is visible is then overwritten."""
    driver = RecordingDriver(open_driver())
    tensor = configuration.tensor(driver)
    model = Model(configuration.segments, FINE)
    seen: list[tuple[object, ...]] = []
    for turn, operation in enumerate(sequence):
        # Without the contents only where they are lost however memory is cut: which segments are "left alone" is not
        # the same for every way of cutting.
        if isinstance(operation, Commit) and operation.defragment:
            operation = replace(operation, keep=True)
        operation.apply(tensor)
        seen.append((tensor.state, tensor.committed, look(tensor, model)))
        for index, start in enumerate(model.starts):
            for place in model.places(index):
                if place < tensor.committed[index]:
                    poke(tensor.base_address + start + place, bytes((1 + turn,)))
    tensor.close()
    driver.check_clean()
    return seen


@given(st.data())
def test_cutting_into_chunks_and_dirt_make_no_difference(data: st.DataObject) -> None:
    configuration = data.draw(configurations(FINE))
    sequence = data.draw(operations(configuration, FINE))
    plain = history(replace(configuration, chunk=None), sequence, FineHostDriver)
    assert history(configuration, sequence, FineHostDriver) == plain
    assert history(configuration, sequence, lambda: DirtyDriver(FineHostDriver())) == plain
    assert history(configuration, sequence, lambda: DirtyDriver(UniformDriver())) == plain


@given(st.data())
def test_a_sequence_once_more_needs_no_more_than_the_first_time(data: st.DataObject) -> None:
    # From asleep, so that both times begin with nothing mapped.
    configuration = data.draw(configurations(FINE))
    sequence: list[Operation] = [*data.draw(operations(configuration, FINE)), Sleep()]
    driver = RecordingDriver(FineHostDriver())
    tensor = configuration.tensor(driver)
    needs = []
    for _ in range(2):
        for operation in sequence:
            operation.apply(tensor)
        needs.append((driver.allocated_bytes, driver.mapped_bytes, len(driver.order.reserved), tensor.committed))
        tensor.restore()
        tensor.commit(0)
    assert needs == [(0, 0, 1, (0,) * len(configuration.segments))] * 2
    tensor.close()
    driver.check_clean()


def test_where_nothing_can_be_put_together_nobody_has_to_let_go() -> None:
    driver = RecordingDriver(UniformDriver())
    tensor = ExtensibleTensor(4 * FINE, driver, segments=2)
    tensor.commit(2 * FINE)
    with tensor.lease(1, "connector", lambda lease: None) as lease:
        tensor.commit(2 * FINE, defragment=True, revoke=True)
        assert lease.valid
    tensor.close()
