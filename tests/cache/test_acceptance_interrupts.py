"""Ctrl-C in the middle of an operation: slots have memory behind them, and calling again goes on.

An interrupt may come between any two instructions of Python. Here it comes at calls of functions, one run for each
place: at calls of the driver, and at calls inside `vmmcache.cache`. Not at every one of these, and at others each time
the code changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.cache.interrupts import Interrupt
from tests.cache.managed import FULL, Make, mark, marks
from tests.helpers import examples
from vmmcache import KVCacheManager
from vmmcache.units import MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib")

Step = Callable[[KVCacheManager], object]

PLACES: Final = 12
"""In how many places each operation is interrupted."""


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
