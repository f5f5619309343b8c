"""Observers of a tensor: asked before bytes go, told after they came or went, in order, whatever they raise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S, status_of_child
from vmmcache import Change, ConfigError, DriverError, ExtensibleTensor, LeaseError, OutOfDeviceMemory, StateError
from vmmcache.testing import RecordingDriver

G = FINE


class Heard(list[Change]):
    """An observer that remembers."""

    def __call__(self, change: Change) -> None:
        self.append(change)

    @property
    def events(self) -> list[str]:
        """The events since the last look."""
        events: list[str] = [change.event for change in self]
        self.clear()
        return events


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def tensor(heard: Heard) -> ExtensibleTensor:
    made = ExtensibleTensor(16 * G, FineHostDriver(), segments=2)
    made.on_change(heard)
    return made


def test_a_life_is_told_in_order(tensor: ExtensibleTensor, heard: Heard) -> None:
    tensor.commit(2 * G)
    assert heard.events == ["committed"]
    tensor.commit(2 * G)
    assert heard.events == [], "nothing has changed"
    tensor.commit([G, 3 * G])
    assert heard.events == ["about_to_release", "committed"]
    tensor.release_physical()
    assert heard.events == ["about_to_release", "asleep"]
    tensor.release_physical()
    assert heard.events == []
    tensor.restore()
    assert heard.events == ["restored"]
    tensor.commit(G, defragment=True)
    assert heard.events == ["about_to_release", "committed"]
    tensor.close()
    tensor.close()
    assert heard.events == ["about_to_release", "closed"]


def test_what_is_told_is_true(tensor: ExtensibleTensor, heard: Heard) -> None:
    tensor.commit([3 * G, G])
    (first,) = heard
    assert (first.ranges, first.committed, first.generation) == ((), (3 * G, G), 0)
    heard.clear()
    tensor.commit([G, G])
    before, after = heard
    assert (before.ranges, before.committed, before.generation) == (((G, 3 * G),), (3 * G, G), 0)
    assert (after.ranges, after.committed, after.generation) == (((G, 3 * G),), (G, G), tensor.generation)
    assert before.operation == after.operation != first.operation


def test_bytes_are_there_when_their_going_is_announced(tensor: ExtensibleTensor) -> None:
    tensor.commit(G)
    tensor.write([(1, 0, b"still")])
    seen: list[object] = []

    def look(change: Change) -> None:
        if change.event == "about_to_release":
            seen.append(bytes(tensor.read([(1, 0, 5)])[0]))

    tensor.on_change(look)
    tensor.release_physical()
    assert seen == [b"still"]
    tensor.close()


def test_who_refuses_is_named_and_nothing_is_touched(tensor: ExtensibleTensor, heard: Heard) -> None:
    """I4, C3: everybody is asked, and everybody hears that it was kept."""
    tensor.commit(G)
    heard.clear()

    def refuse(change: Change) -> None:
        if change.event == "about_to_release":
            raise RuntimeError("busy")

    end = tensor.on_change(refuse)
    after = Heard()
    tensor.on_change(after)
    generation = tensor.generation
    operations: list[Callable[[], None]] = [tensor.release_physical, tensor.close, lambda: tensor.commit(0)]
    for operation in operations:
        with pytest.raises(LeaseError, match="refused to let bytes go: RuntimeError: busy") as caught:
            operation()
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert "refuse" in caught.value.owners[0]
    assert (tensor.state, tensor.generation, tensor.committed) == ("committed", generation, (G, G))
    assert heard.events == after.events == ["about_to_release", "kept"] * 3
    end()
    end()
    tensor.close()
    assert heard.events == ["about_to_release", "closed"]


def test_an_observer_that_fails_afterwards_is_logged_and_changes_nothing(
    tensor: ExtensibleTensor, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(change: Change) -> None:
        raise RuntimeError(f"cannot bear {change.event}")

    end = tensor.on_change(fail)
    late = Heard()
    tensor.on_change(late)
    with caplog.at_level(logging.ERROR):
        tensor.commit(G)
    assert tensor.committed == (G, G)
    assert late.events == ["committed"]
    assert "failed at committed" in caplog.text
    assert "cannot bear committed" in caplog.text
    end()
    tensor.close()


def test_a_lease_that_is_in_the_way_keeps_everything(tensor: ExtensibleTensor, heard: Heard) -> None:
    """The question comes before owners are made to let go; the answer is what came of it."""
    tensor.commit(G)
    order: list[str] = []
    tensor.on_change(lambda change: order.append(change.event))
    lease = tensor.lease(0, "nixl", on_revoke=lambda _: order.append("revoked"))
    heard.clear()
    with pytest.raises(LeaseError, match="nixl"):
        tensor.release_physical()
    assert heard.events == ["about_to_release", "kept"]
    order.clear()
    tensor.release_physical(revoke=True)
    assert order == ["about_to_release", "revoked", "asleep"]
    assert not lease.valid
    tensor.close()


@pytest.mark.parametrize("verb", ["create", "map", "grant"])
def test_an_operation_that_fails_and_changes_nothing_is_no_news(heard: Heard, verb: str) -> None:
    driver = RecordingDriver(FineHostDriver())
    tensor = ExtensibleTensor(4 * G, driver)
    tensor.on_change(heard)
    driver.fail(verb=verb)
    with pytest.raises(DriverError):
        tensor.commit(G)
    assert heard.events == []
    tensor.commit(G)
    assert heard.events == ["committed"]
    tensor.close()


def test_what_is_given_back_in_part_is_told_as_it_is(heard: Heard) -> None:
    """Giving back counts as done where the driver refuses to take it."""
    driver = RecordingDriver(FineHostDriver())
    tensor = ExtensibleTensor(4 * G, driver)
    tensor.commit(2 * G)
    tensor.on_change(heard)
    driver.fail(verb="unmap")
    with pytest.raises(DriverError):
        tensor.release_physical()
    assert heard.events == ["about_to_release", "asleep"]
    tensor.restore()
    driver.fail(verb="create")
    heard.clear()
    with pytest.raises((DriverError, OutOfDeviceMemory)):
        tensor.commit(3 * G, defragment=True)
    assert heard.events == ["about_to_release", "committed"], "the old memory went first"
    tensor.close()


def test_an_observer_may_change_the_tensor_and_its_news_come_after(tensor: ExtensibleTensor, heard: Heard) -> None:
    once = iter([lambda: tensor.commit(2 * G)])

    def grow(change: Change) -> None:
        next(once, lambda: None)()

    tensor.on_change(grow)
    late = Heard()
    tensor.on_change(late)
    tensor.commit(G)
    assert [change.committed[0] for change in heard] == [change.committed[0] for change in late] == [G, 2 * G]
    tensor.close()


def test_news_of_many_threads_come_in_the_order_of_the_changes(tensor: ExtensibleTensor, heard: Heard) -> None:
    """And each operation's have been told when it returns."""
    missing: list[int] = []

    def work(segment: int) -> None:
        for _ in range(40):
            sizes = list(tensor.committed)
            sizes[segment] = (sizes[segment] + G) % (4 * G)
            tensor.commit(sizes)
            if not heard:
                missing.append(segment)

    threads = [threading.Thread(target=work, args=(segment,)) for segment in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    generations = [change.generation for change in heard if change.event == "committed"]
    assert generations == sorted(generations)
    assert missing == []
    running: set[int] = set()
    for change in heard:
        if change.event == "about_to_release":
            running.add(change.operation)
        else:
            running.discard(change.operation)
    assert running == set(), "whatever was announced is followed by news"
    tensor.close()


def test_no_lock_is_held_while_observers_are_at_it(tensor: ExtensibleTensor) -> None:
    """Another thread may look at the tensor, and wait for nothing."""
    seen: list[tuple[int, ...]] = []

    def look_elsewhere(change: Change) -> None:
        thread = threading.Thread(target=lambda: seen.append((len(tensor.registrable()), tensor.physical_bytes)))
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    end = tensor.on_change(look_elsewhere)
    tensor.commit(G)
    tensor.release_physical()
    end()
    assert seen == [(2, 2 * G), (2, 2 * G), (0, 0)]
    tensor.close()


def test_what_is_no_observer_is_refused(tensor: ExtensibleTensor) -> None:
    wrong: Any = "call me"
    with pytest.raises(ConfigError, match="observer"):
        tensor.on_change(wrong)
    tensor.close()


def test_a_forked_child_tells_nobody(tensor: ExtensibleTensor, heard: Heard) -> None:
    tensor.commit(G)
    heard.clear()

    def child() -> None:
        with pytest.raises(StateError, match="fork"):
            tensor.commit(2 * G)
        assert heard.events == []

    assert status_of_child(child) == 0
    tensor.close()


def test_an_observer_ends_while_others_are_called(tensor: ExtensibleTensor, heard: Heard) -> None:
    ends: list[Callable[[], None]] = []

    def once(change: Change) -> None:
        ends[0]()

    ends.append(tensor.on_change(once))
    tensor.commit(G)
    tensor.commit(2 * G)
    assert heard.events == ["committed", "committed"]
    tensor.close()
