"""A random life of an exporter: whenever it is quiet, all importers show its bytes, and those of a model (C7)."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S
from tests.sharing.support import contents, descriptors, eventually
from vmmcache import DriverError, ExtensibleTensor, LeaseError, SharedTensor, SharingError, TensorServer
from vmmcache.testing import RecordingDriver

G: Final = FINE
SEGMENTS: Final = (2 * G, G + G // 2, 2 * G + G // 2)
"""The last two share a granule."""
sizes = st.tuples(*(st.sampled_from([0, 1, G // 2, G, G + 1, size]).map(partial(min, size)) for size in SEGMENTS))


class SharedLife(RuleBasedStateMachine):
    """The model is a string of bytes for each segment; it knows nothing of granules, allocations or sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.open = descriptors()
        self.folder = tempfile.TemporaryDirectory(prefix="shared-life-")
        self.ours = RecordingDriver(FineHostDriver())
        self.importers: dict[SharedTensor, RecordingDriver] = {}
        self.model = [bytearray() for _ in SEGMENTS]
        self.asleep: list[bytearray] | None = None
        self.written = 0

    @initialize(chunk=st.sampled_from([None, G]))
    def begin(self, chunk: int | None) -> None:
        self.tensor = ExtensibleTensor(sum(SEGMENTS), self.ours, segments=SEGMENTS, chunk=chunk)
        self.server = TensorServer(self.tensor, Path(self.folder.name, "kv"), timeout_s=PATIENCE_S)

    @rule(target_sizes=sizes, defragment=st.booleans())
    @precondition(lambda self: self.asleep is None)
    def commit(self, target_sizes: tuple[int, ...], defragment: bool) -> None:
        self.tensor.commit(target_sizes, defragment=defragment, keep=defragment, revoke=True)
        for data, size in zip(self.model, target_sizes, strict=True):
            del data[size:]
            data += bytes(size - len(data))

    @rule(target_sizes=sizes)
    @precondition(lambda self: self.asleep is None and self.importers)
    def shrink_without_asking(self, target_sizes: tuple[int, ...]) -> None:
        """Refused where an importer maps what would go, and nothing has happened then."""
        smaller = tuple(min(size, len(data)) for size, data in zip(target_sizes, self.model, strict=True))
        if any(size < len(data) for size, data in zip(smaller, self.model, strict=True)):
            try:
                self.tensor.commit(smaller)
            except LeaseError as error:
                assert "importer" in error.owners[0]
            else:
                raise AssertionError("taken from under an importer")

    @rule(target_sizes=sizes, verb=st.sampled_from(["create", "map", "grant", "export_handle"]))
    @precondition(lambda self: self.asleep is None and not self.importers)
    def fail_to_grow(self, target_sizes: tuple[int, ...], verb: str) -> None:
        larger = tuple(max(size, len(data)) for size, data in zip(target_sizes, self.model, strict=True))
        self.ours.fail(verb=verb)
        try:
            self.tensor.commit(larger)
        except DriverError:
            pass
        else:
            for data, size in zip(self.model, larger, strict=True):
                data += bytes(size - len(data))
        self.ours.heal()

    @rule(backup=st.booleans())
    @precondition(lambda self: self.asleep is None)
    def sleep(self, backup: bool) -> None:
        self.tensor.release_physical(backup=backup, revoke=True)
        reserved = not any(self.model)
        self.asleep = [bytearray(data if backup else bytes(len(data))) for data in self.model]
        self.model = [bytearray() for _ in SEGMENTS]
        assert self.tensor.state == "asleep" or reserved

    @rule()
    @precondition(lambda self: self.asleep is not None)
    def wake(self) -> None:
        self.tensor.restore()
        assert self.asleep is not None
        self.model, self.asleep = self.asleep, None

    @rule(segment=st.integers(0, 2), place=st.floats(0, 1, exclude_max=True), who=st.integers(0, 3))
    def write(self, segment: int, place: float, who: int) -> None:
        """By the exporter, or by an importer that may."""
        data = self.model[segment]
        if data:
            at, self.written = int(place * len(data)), self.written % 255 + 1
            writers = [self.tensor, *(shared for shared in self.importers if shared.writable)]
            writers[who % len(writers)].write([(segment, at, bytes([self.written]))])
            data[at] = self.written

    @rule(writable=st.booleans())
    @precondition(lambda self: len(self.importers) < 3)
    def connect(self, writable: bool) -> None:
        theirs = RecordingDriver(FineHostDriver())
        shared = SharedTensor.connect(self.server.path, theirs, writable=writable, timeout_s=PATIENCE_S)
        self.importers[shared] = theirs

    @rule()
    @precondition(lambda self: self.importers)
    def leave(self) -> None:
        shared, theirs = self.importers.popitem()
        shared.close()
        theirs.check_clean()
        eventually(lambda: len(self.server.importers) == len(self.importers))

    @rule()
    @precondition(lambda self: self.importers)
    def lose(self) -> None:
        """The connection breaks: the exporter goes on, and what was mapped stays valid."""
        shared, theirs = self.importers.popitem()
        before = contents(shared)
        shared._link._channel.hang_up()
        eventually(lambda: shared.connection == "lost")
        eventually(lambda: len(self.server.importers) == len(self.importers))
        assert contents(shared) == before
        assert isinstance(shared.problem, SharingError)
        shared.close()
        theirs.check_clean()

    @rule()
    def vacate(self) -> None:
        self.server.vacate()
        assert [importer.allocations for importer in self.server.importers] == [0] * len(self.importers)
        # Until the next change; this is one, and leaves everything as it was.
        if self.asleep is None and any(self.model):
            self.tensor.release_physical(backup=True)
            self.tensor.restore()

    @invariant()
    def all_show_the_same(self) -> None:
        if not hasattr(self, "tensor"):
            return
        expected = [bytes(data) for data in self.model]
        assert contents(self.tensor) == expected
        self.ours.check_granted()
        for shared, theirs in self.importers.items():
            eventually(lambda shared=shared: _follows(shared, self.tensor))  # type: ignore[misc]  # a lambda's default
            assert contents(shared) == expected
            theirs.check_granted()
            assert theirs.mapped_bytes == self.tensor.physical_bytes

    def teardown(self) -> None:
        if hasattr(self, "tensor"):
            for shared, theirs in self.importers.items():
                shared.close()
                theirs.check_clean()
            self.server.close()
            self.tensor.close()
            self.ours.check_clean()
        self.folder.cleanup()
        eventually(lambda: descriptors() == self.open)


def _follows(shared: SharedTensor, tensor: ExtensibleTensor) -> bool:
    return shared.committed == tensor.committed and shared.generation == tensor.generation


TestSharedLife = SharedLife.TestCase
TestSharedLife.settings = settings(
    max_examples=40, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow], deadline=None
)
