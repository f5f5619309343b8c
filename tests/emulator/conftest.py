"""Fixtures for the emulator's own tests."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.emulator.direct import Library

Load = Callable[..., Library]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """``load("cuda-13", devices=2)`` gives a fresh library of that profile, unloaded when the test ends."""
    libraries = []

    def fresh(profile: str, **knobs: int) -> Library:
        library = Library("cuda" if profile.startswith("cuda") else "hip", profile, tmp_path, **knobs)
        libraries.append(library)
        return library

    yield fresh
    for library in libraries:
        library.close()


@pytest.fixture
def cuda(load: Load) -> Library:
    """A CUDA library, initialised, with a context in this thread."""
    return load("cuda-13").start()


@pytest.fixture(params=["cuda-13", "hip-10.0"])
def either(request: pytest.FixtureRequest, load: Load) -> Library:
    """Both vendors' newest, one after the other, for what is the core's."""
    return load(request.param).start()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """A soft limit not far above what is open, as a default shell has it."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = min(max(int(name) for name in os.listdir("/proc/self/fd")) + 32, old[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, old[1]))
    yield soft
    resource.setrlimit(resource.RLIMIT_NOFILE, old)
