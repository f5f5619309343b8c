"""The stateful machine over the host driver: without and with refused calls, over clean and over dirty memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from vmmcache import VmmDriver
from vmmcache.testing import DirtyDriver, TensorMachine
from vmmcache_host._driver import open_host

FLOOR = 1_500
"""Steps that each of the four machines must have made: a machine whose rules are not to be had any more tests nothing."""


class HostMachine(TensorMachine):
    """Looks at memory as the process sees it."""

    def open_driver(self) -> VmmDriver:
        return open_host(0)

    def peek(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def poke(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))


class DirtyMachine(HostMachine):
    def open_driver(self) -> VmmDriver:
        return DirtyDriver(super().open_driver())


class FaultyMachine(HostMachine):
    faults: ClassVar[bool] = True


class DirtyFaultyMachine(DirtyMachine):
    faults: ClassVar[bool] = True


@pytest.mark.parametrize("machine", [HostMachine, DirtyMachine, FaultyMachine, DirtyFaultyMachine])
def test_the_machine_finds_nothing(
    machine: type[TensorMachine], monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    # Less than the largest tensor drawn, so that memory runs out by itself, too.
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=40, derandomize=True))
    record_property("counted: steps of the stateful machine", machine.steps)
    record_property("counted: injected faults", machine.injected)
    assert machine.steps >= FLOOR
    assert (machine.injected > FLOOR // 5) == machine.faults
