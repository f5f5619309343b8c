"""Ctrl-C in the middle of an operation: slots have memory behind them, and calling again goes on.

An interrupt may come between any two instructions of Python. Here it comes at calls of functions, one run for each
place: at calls of the driver, and at calls inside `vmmcache.cache`. Not at every one of these, and at others each time
the code changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import vmmcache.cache
from tests.cache.managed import FULL, light_collections, mark, marks, on_host, on_torch
from tests.helpers import examples, usage
from vmmcache import KVCacheManager
from vmmcache.units import MIB

Make = Callable[..., KVCacheManager]
Step = Callable[[KVCacheManager], object]

INSIDE: Final = str(Path(vmmcache.cache.__file__).parent)
PLACES: Final = 12
"""In how many places each operation is interrupted."""


@pytest.fixture(autouse=True)
def _sixteen_mib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with light_collections():
        before = usage()
        yield
        assert usage() == before


class Interrupt:
    """Raises KeyboardInterrupt at one call of a function of the cache's, counted from 1; 0 only counts."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        # A generator that is thrown away swallows what is raised in it.
        if event == "call" and frame.f_code.co_filename.startswith(INSIDE) and not frame.f_code.co_flags & 0x20:
            self.seen += 1
            if self.seen == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt

    def during(self, operation: Callable[[], object]) -> bool:
        """Whether the operation was interrupted."""
        before: Any = sys.gettrace()
        sys.settrace(self)
        try:
            operation()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def resized(nbytes: int) -> Step:
    return lambda manager: manager.resize(nbytes)


OPERATIONS: Final[dict[str, tuple[tuple[Step, ...], Step, str]]] = {
    "finalize": ((lambda manager: manager.ensure(20),), lambda manager: manager.finalize(), "ready"),
    "sleep": ((KVCacheManager.finalize,), lambda manager: manager.sleep(backup=True), "asleep"),
    "wake": ((KVCacheManager.finalize, KVCacheManager.sleep), lambda manager: manager.wake(), "ready"),
    "resize up": ((KVCacheManager.finalize, resized(4 * MIB)), resized(8 * MIB), "ready"),
    "resize down": ((KVCacheManager.finalize,), resized(4 * MIB), "ready"),
    "close": ((KVCacheManager.finalize,), lambda manager: manager.close(), "closed"),
}


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("make", [on_host, on_torch], ids=["measured", "estimated"])
def test_an_interrupted_operation_can_be_called_again(make: Make, name: str) -> None:
    """I4, I9: nobody can get a slot without memory, and nothing is left in the end."""
    places = calls_of(make, name)
    for at in range(1, places, max(1, places // examples(PLACES))):
        before, operation, after = OPERATIONS[name]
        manager = made(make, before)
        request = None
        if name in ("sleep", "resize down"):
            request = manager.slots.allocate(64, 64)
            mark(manager, FULL, request.blocks(0)[1], 0x5A)
            manager.slots.suspend(request, backup=True)
        interrupt = Interrupt(at)
        assert interrupt.during(lambda: operation(manager)) or interrupt.seen < at  # noqa: B023  # called at once
        if manager.state != "closed":
            assert all(
                slots <= memory for slots, memory in zip(manager.slots.counts, manager.committed, strict=True)
            ), at
        if manager.state != after or name == "resize up":
            operation(manager)
        assert manager.state == after
        if after == "asleep":
            manager.wake()
        if manager.state == "ready":
            assert manager.slots.counts == manager.committed == tuple(group.slots for group in manager.plan.groups)
            if request is not None:
                assert manager.slots.resume(request)
                assert not request.lost
                assert marks(manager, FULL, request.blocks(0)[1]) == {0x5A}
                manager.slots.free(request)
            manager.slots.free(manager.slots.allocate(64))
        manager.close()


def calls_of(make: Make, name: str) -> int:
    """Calls of functions of the cache's while an operation is done."""
    before, operation, _ = OPERATIONS[name]
    manager = made(make, before)
    count = Interrupt(0)
    count.during(lambda: operation(manager))
    manager.close()
    assert count.seen > 10
    return count.seen


def made(make: Make, before: tuple[Step, ...]) -> KVCacheManager:
    manager = make()
    for step in before:
        step(manager)
    return manager
