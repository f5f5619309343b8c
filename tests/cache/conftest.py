"""What tests of the cache share: the two paths of a manager, and a host of which nothing is left taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cache.managed import Make, light_collections, on_host, on_torch
from tests.helpers import usage


@pytest.fixture(params=[on_host, on_torch], ids=["measured", "estimated"])
def make(request: pytest.FixtureRequest) -> Make:
    """A test that asks for it is run on both paths: the engine's calls are the same."""
    made: Make = request.param
    return made


@pytest.fixture
def sixteen_mib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So much memory has the host, and all of it has come back in the end."""
    yield from _host_of("16MiB", monkeypatch)


@pytest.fixture
def seven_mib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As `sixteen_mib`, of a host in which a cache is soon too large."""
    yield from _host_of("7MiB", monkeypatch)


def _host_of(memory: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", memory)
    with light_collections():
        before = usage()
        yield
        assert usage() == before
