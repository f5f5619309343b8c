"""Regions that adopt memory of another process: under the undo stack and ledger of their own memory (C7, I3, I4)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import Accounts, accounts, peek
from vmmcache import ConfigError, DriverError, ExtensibleTensor, StateError
from vmmcache.memory.region import Offer, Region
from vmmcache.memory.states import State
from vmmcache.testing import RecordingDriver

G = FINE


@pytest.fixture
def exporter() -> Iterator[ExtensibleTensor]:
    tensor = ExtensibleTensor(8 * G, FineHostDriver(), chunk=G)
    tensor.commit(3 * G)
    tensor.write([(0, place * G, b"piece %d" % place) for place in range(3)])
    yield tensor
    tensor.close()


@contextlib.contextmanager
def offers(exporter: ExtensibleTensor) -> Iterator[list[Offer]]:
    with contextlib.ExitStack() as exports:
        yield [
            Offer(
                piece.logical_offset,
                piece.nbytes,
                exports.enter_context(exporter.export(piece)).handle,
                "posix_fd",
            )
            for piece in exporter.registrable()
        ]


def region(driver: RecordingDriver | FineHostDriver) -> Region:
    return Region(driver, 8 * G, guard=lambda _: None)


def test_adopted_memory_has_its_contents_and_goes_like_any_other(exporter: ExtensibleTensor) -> None:
    driver = RecordingDriver(FineHostDriver())
    ours = region(driver)
    with offers(exporter) as given, ours.gate.operation("adopt"):
        ours.adopt(given)
    assert [peek(ours.base + place * G, 7) for place in range(3)] == [b"piece 0", b"piece 1", b"piece 2"]
    assert (ours.state, ours.physical_bytes) == (State.COMMITTED, 3 * G)
    driver.check_granted()
    with ours.gate.operation("retain"):
        ours.retain([(0, G), (2 * G, 3 * G)])
    assert [mapping.offset for mapping in ours.mappings] == [0, 2 * G]
    with ours.gate.operation("sleep"):
        ours.sleep(())
    assert (ours.state, ours.physical_bytes) == (State.ASLEEP, 0)
    with offers(exporter) as given, ours.gate.operation("adopt"):
        ours.adopt(given[1:2])
    assert (ours.state, peek(ours.base + G, 7)) == (State.COMMITTED, b"piece 1")
    with ours.gate.operation("close"):
        ours.close()
    driver.check_clean()


def test_read_only_is_kept_by_the_driver_and_by_the_machine(exporter: ExtensibleTensor) -> None:
    driver = FineHostDriver()
    ours = region(driver)
    with offers(exporter) as given, ours.gate.operation("adopt"):
        ours.adopt(given, writable=False)
        assert ours.read([(0, 7)]) == [b"piece 0"]
        calls: list[Callable[[], None]] = [
            lambda: ours.write([(0, 4)], [b"here"]),
            lambda: ours.clean([(0, 4)]),
            lambda: ours.copy([((0, 4), (G, G + 4))]),
        ]
        for call in calls:
            with pytest.raises(DriverError, match="for reading only"):
                call()
    assert f"{ours.base:x}-" in _maps("r--s"), "a write of the importer's would fault"
    with ours.gate.operation("close"):
        ours.close()
    assert accounts(driver) == Accounts()


def _maps(kind: str) -> str:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return "".join(line for line in maps if kind in line)


@pytest.mark.parametrize("verb", ["import_handle", "map", "grant"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("undo", [None, "unmap", "release"])
def test_all_of_it_is_adopted_or_none(exporter: ExtensibleTensor, verb: str, nth: int, undo: str | None) -> None:
    """I3, I4: also where the undoing is refused, too; what is owed goes with the next operation."""
    driver = RecordingDriver(FineHostDriver())
    ours = region(driver)
    with offers(exporter) as given:
        driver.fail(nth, verb=verb)
        if undo is not None:
            driver.fail(verb=undo)
        with ours.gate.operation("adopt"), pytest.raises(DriverError) as caught:
            ours.adopt(given)
        assert ours.state is State.RESERVED
        assert ours.mappings == ()
        owed = driver.injected == 2
        assert ours.owes == owed
        assert any("undoing failed too" in note for note in getattr(caught.value, "__notes__", ())) == owed
        driver.heal()
        with ours.gate.operation("adopt"):
            ours.adopt(given)
        assert ours.physical_bytes == 3 * G
        for offer in given:
            os.fstat(int(offer.shared))  # stays the caller's
    with ours.gate.operation("close"):
        ours.close()
    driver.check_clean()


def test_what_is_no_memory_is_refused_and_nothing_is_left(exporter: ExtensibleTensor, tmp_path: object) -> None:
    driver = FineHostDriver()
    ours = region(driver)
    reading, writing = os.pipe()
    plain = os.memfd_create("anybody's")
    os.ftruncate(plain, G)
    with offers(exporter) as given, ours.gate.operation("adopt"):
        for shared in reading, writing, plain:
            with pytest.raises(ConfigError, match="no memory file that keeps its size"):
                ours.adopt([given[0], given[1]._replace(shared=shared)])
        with pytest.raises(ConfigError, match=f"holds {G} bytes"):
            ours.adopt([given[0]._replace(nbytes=2 * G)])
        with pytest.raises(DriverError, match="EBADF"):
            ours.adopt([given[0]._replace(shared=999_999)])
        with pytest.raises(DriverError, match="something is mapped there"):
            ours.adopt([given[0], given[1]._replace(offset=0)])
        with pytest.raises(ConfigError, match="end past the reservation"):
            ours.adopt([given[0]._replace(offset=8 * G)])
    for descriptor in reading, writing, plain:
        os.close(descriptor)
    assert accounts(driver) == Accounts(reservations=1)
    with ours.gate.operation("close"):
        ours.close()
    with ours.gate.operation("adopt"), pytest.raises(StateError, match="closed"):
        ours.adopt([])


def test_nobody_can_cut_a_file_under_its_importer(exporter: ExtensibleTensor) -> None:
    """D15: a file that shrinks is SIGBUS for whoever maps it."""
    with offers(exporter) as given:
        for nbytes in 0, 2 * G:
            with pytest.raises(PermissionError):
                os.ftruncate(int(given[0].shared), nbytes)
