"""Reading, writing and copying committed bytes through the tensor, on the host driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import peek, status_of_child
from vmmcache import ConfigError, DriverError, ExtensibleTensor, StateError
from vmmcache.testing import DirtyDriver, RecordingDriver

SIZES = (FINE + 100, 3 * FINE, FINE)
COMMITTED = (FINE + 50, 2 * FINE, 0)


@pytest.fixture
def driver() -> RecordingDriver:
    return RecordingDriver(DirtyDriver(FineHostDriver()))


@pytest.fixture
def tensor(driver: RecordingDriver) -> Iterator[ExtensibleTensor]:
    """Unequal segments, committed in several allocations."""
    tensor = ExtensibleTensor(sum(SIZES), driver, SIZES)
    tensor.commit((100, 1, 0))
    tensor.commit(COMMITTED)
    assert len(tensor.allocations) > 2
    yield tensor
    tensor.close()
    driver.check_clean()


def test_bytes_are_where_their_segment_is(tensor: ExtensibleTensor) -> None:
    tensor.write([(0, 7, b"seven"), (1, FINE - 2, bytearray(b"across")), (0, COMMITTED[0] - 4, b"last")])
    start = tensor.base_address
    assert peek(start + 7, 5) == b"seven"
    assert peek(start + SIZES[0] + FINE - 2, 6) == b"across"
    assert tensor.read([(0, COMMITTED[0] - 4, 4), (1, FINE - 3, 8), (0, 0, 0)]) == [b"last", b"\0across\0", b""]
    assert tensor.read([(2, 0, 0)]) == [b""]


def test_pieces_are_copied_one_after_the_other(tensor: ExtensibleTensor) -> None:
    tensor.write([(1, 0, b"abc"), (0, 0, b"x")])
    tensor.copy([(1, 3, 0, 3), (1, 6, 3, 3), (1, 0, 7, 1), (0, FINE, 0, 1)])
    assert tensor.read([(1, 0, 10), (0, FINE, 1)]) == [b"bbcabcabc\0", b"x"]


@given(st.data())
def test_any_sequence_of_pieces_is_what_it_does_to_plain_bytes(data: st.DataObject) -> None:
    sizes = (40, 24)
    with ExtensibleTensor(FINE, FineHostDriver(), (FINE // 2, FINE // 2)) as tensor:
        tensor.commit(sizes)
        model = [bytearray(size) for size in sizes]
        for turn in range(data.draw(st.integers(1, 6))):
            segment = data.draw(st.integers(0, 1))
            length = data.draw(st.integers(0, sizes[segment] // 2))
            target, source = (data.draw(st.integers(0, sizes[segment] - length)) for _ in range(2))
            if data.draw(st.booleans()):
                text = bytes((turn + 1,)) * length
                tensor.write([(segment, target, text)])
                model[segment][target : target + length] = text
            elif length and abs(target - source) < length:
                with pytest.raises(ConfigError, match="overlap"):
                    tensor.copy([(segment, target, source, length)])
            else:
                tensor.copy([(segment, target, source, length)])
                model[segment][target : target + length] = model[segment][source : source + length]
            assert tensor.read([(0, 0, sizes[0]), (1, 0, sizes[1])]) == model


def test_the_device_is_waited_for_before_and_where_it_was_given_work_after(
    tensor: ExtensibleTensor, driver: RecordingDriver
) -> None:
    """What is read is what kernels before have written, and whoever comes after sees what was written and copied."""
    operations: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: tensor.read([(0, 0, 1), (1, 0, 1)]), ["synchronise", "read", "read"]),
        (lambda: tensor.write([(0, 0, b"a")]), ["synchronise", "write", "synchronise"]),
        (lambda: tensor.copy([(0, 0, 8, 4), (1, 0, 8, 4)]), ["synchronise", "copy", "copy", "synchronise"]),
    ]
    for operation, verbs in operations:
        driver.launch(tensor.base_address, tensor.capacity)
        mark = len(driver.journal)
        operation()
        assert [call.verb for call in driver.journal[mark:]] == verbs


WRONG: list[tuple[str, Any, str]] = [
    ("read", (3, 0, 1), "segment"),
    ("read", (0, COMMITTED[0], 1), "offset"),
    ("read", (0, 0, COMMITTED[0] + 1), "nbytes"),
    ("read", (2, 0, 1), "nbytes"),
    ("read", (0, -1, 1), "offset"),
    ("read", (0, 0, 1.0), "nbytes"),
    ("read", (0, 0), "a tuple of 3"),
    ("write", (0, COMMITTED[0] - 1, b"ab"), "offset"),
    ("write", (0, 0, "text"), "data"),
    ("write", [0, 0, b""], "a tuple of 3"),
    ("copy", (0, 0, COMMITTED[0] - 1, 2), "offset"),
    ("copy", (0, COMMITTED[0] - 1, 0, 2), "offset"),
    ("copy", (0, 0, 3, 4), "overlap"),
    ("copy", (0, 3, 0, 4), "overlap"),
    ("copy", (0, 0, 1), "a tuple of 4"),
]


@pytest.mark.parametrize(("verb", "piece", "what"), WRONG)
def test_what_is_not_committed_is_refused_before_anything_is_touched(
    tensor: ExtensibleTensor, driver: RecordingDriver, verb: str, piece: Any, what: str
) -> None:
    good = {"read": (0, 0, 4), "write": (0, 0, b"good"), "copy": (0, 0, 8, 4)}[verb]
    tensor.write([(0, 0, b"before..after")])
    mark = len(driver.journal)
    with pytest.raises(ConfigError, match=what):
        getattr(tensor, verb)([good, piece])
    assert driver.journal[mark:] == []
    assert tensor.read([(0, 0, 13)]) == [b"before..after"]


@pytest.mark.parametrize("verb", ["read", "write", "copy"])
def test_asleep_and_closed_there_is_nothing_to_touch(tensor: ExtensibleTensor, verb: str) -> None:
    tensor.release_physical()
    with pytest.raises(StateError, match=r"restore\(\) first") as caught:
        getattr(tensor, verb)([])
    assert (caught.value.state, caught.value.event) == ("asleep", verb)
    tensor.close()
    with pytest.raises(StateError, match="make a new one") as caught:
        getattr(tensor, verb)([])
    assert (caught.value.state, caught.value.event) == ("closed", verb)


@pytest.mark.parametrize("verb", ["read", "write", "copy", "synchronise"])
def test_a_refusal_of_the_driver_comes_out_and_the_tensor_goes_on(
    tensor: ExtensibleTensor, driver: RecordingDriver, verb: str
) -> None:
    operations: dict[str, Callable[[], object]] = {
        "read": lambda: tensor.read([(0, 0, 4), (1, 0, 4)]),
        "write": lambda: tensor.write([(0, 0, b"abcd"), (1, 0, b"efgh")]),
        "copy": lambda: tensor.copy([(0, 0, 8, 4), (1, 0, 8, 4)]),
    }
    for name, operation in operations.items():
        if verb not in (name, "synchronise"):
            continue
        driver.fail(verb=verb)
        with pytest.raises(DriverError) as caught:
            operation()
        assert caught.value.call == verb
        driver.heal()
        operation()


def test_a_forked_child_touches_nothing(tensor: ExtensibleTensor) -> None:
    def touch() -> None:
        for verb in ("read", "write", "copy"):
            with pytest.raises(StateError, match="fork"):
                getattr(tensor, verb)([])

    assert status_of_child(touch) == 0
