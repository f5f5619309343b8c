"""Fixtures for the emulator's own tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulator.direct import Library

Load = Callable[..., Library]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """``load("cuda-13", devices=2)`` gives a fresh library of that profile."""

    def fresh(profile: str, **knobs: int) -> Library:
        return Library("cuda" if profile.startswith("cuda") else "hip", profile, tmp_path, **knobs)

    return fresh


@pytest.fixture
def cuda(load: Load) -> Library:
    """A CUDA library, initialised, with a context in this thread."""
    return load("cuda-13").start()


@pytest.fixture(params=["cuda-13", "hip-10.0"])
def either(request: pytest.FixtureRequest, load: Load) -> Library:
    """Both vendors' newest, one after the other, for what is the core's."""
    return load(request.param).start()
