"""Tests that run inside a child process which finds an emulated library; tests/drivers starts the children."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from tests.emulated.vendor import opened, stance
from tests.emulator.child import outside_only
from tests.emulator.control import Control
from vmmcache import VmmDriver

collect_ignore_glob = outside_only()

if "VMMEMU_LIBRARY" in os.environ:
    # Above this limit the emulated library keeps its own descriptors, as the vendors' keep theirs in a kernel module.
    # So tests that count descriptors count the driver's.
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.fixture(scope="session")
def control() -> Control:
    """The emulated library of this process."""
    return Control.here()


@pytest.fixture(scope="session")
def driver(control: Control) -> VmmDriver:
    """The vendor's driver on device 0, opened once."""
    return opened(0)


@pytest.fixture(autouse=True)
def _nothing_is_left(control: Control) -> Iterator[None]:
    """Every test gives back what it took, leaves the thread as it was, and breaks no rule of the vendor's."""
    control.fail_nothing()
    left, broken, before = control.leaks(), control.count("violations"), stance(control)
    yield
    control.fail_nothing()
    assert control.leaks() == left
    assert control.violations()[broken:] == []
    assert stance(control) == before
