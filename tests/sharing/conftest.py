"""A tensor with a server and an importer, each over a driver of its own that watches the rules."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S
from tests.sharing.support import descriptors
from vmmcache import ExtensibleTensor, SharedTensor, TensorServer
from vmmcache.testing import RecordingDriver

G = FINE


@pytest.fixture(scope="module", autouse=True)
def _alone() -> None:
    """What other tests have dropped closes its descriptors now, and not in the middle of one that counts them."""
    gc.collect()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.sock"


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    made = RecordingDriver(FineHostDriver())
    before = descriptors()
    yield made
    made.check_clean()
    assert descriptors() == before


@pytest.fixture
def tensor(driver: RecordingDriver) -> Iterator[ExtensibleTensor]:
    with ExtensibleTensor(16 * G, driver, segments=2) as made:
        made.commit(G)
        yield made


@pytest.fixture
def server(tensor: ExtensibleTensor, path: Path) -> Iterator[TensorServer]:
    with TensorServer(tensor, path, timeout_s=PATIENCE_S) as made:
        yield made


@pytest.fixture
def theirs() -> Iterator[RecordingDriver]:
    made = RecordingDriver(FineHostDriver())
    yield made
    made.check_clean()


@pytest.fixture
def shared(server: TensorServer, theirs: RecordingDriver) -> Iterator[SharedTensor]:
    with SharedTensor.connect(server.path, theirs) as made:
        yield made
