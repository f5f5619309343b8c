"""The stateful machine over the host driver: without and with refused calls, over clean and over dirty memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fine_host import FineHostDriver, KeepingDriver, UniformDriver
from tests.helpers import peek, poke
from vmmcache import VmmDriver
from vmmcache.testing import DirtyDriver, TensorMachine
from vmmcache.testing.strategies import FaultPlan
from vmmcache_host._driver import open_host

FLOOR = 1_500
"""Steps that each of the machines must have made: a machine whose rules do not come up any more tests nothing."""


class HostMachine(TensorMachine):
    """Looks at memory as the process sees it."""

    def open_driver(self) -> VmmDriver:
        return open_host(0)

    def peek(self, address: int, nbytes: int) -> bytes:
        return peek(address, nbytes)

    def poke(self, address: int, data: bytes) -> None:
        poke(address, data)

    def open_descriptors(self) -> int:
        # Of this driver's files; libraries open and close others.
        return sum("memfd:vmmcache" in _target(name) for name in os.listdir("/proc/self/fd"))


class FaultyMachine(HostMachine):
    faults: ClassVar[bool] = True


class DirtyMachine(HostMachine):
    def open_driver(self) -> VmmDriver:
        return DirtyDriver(FineHostDriver())


class DirtyFaultyMachine(DirtyMachine):
    faults: ClassVar[bool] = True


class UniformMachine(HostMachine):
    faults: ClassVar[bool] = True

    def open_driver(self) -> VmmDriver:
        return DirtyDriver(UniformDriver())


class KeepingMachine(HostMachine):
    faults: ClassVar[bool] = True

    def open_driver(self) -> VmmDriver:
        self.keeping = KeepingDriver()
        return self.keeping

    def attempt(self, operation: Callable[[], object], plan: FaultPlan) -> Exception | None:
        error = super().attempt(operation, plan)
        if error is None and self.tensor.state == "asleep":
            assert self.keeping.kept == {}, "asleep, and the device has not got its memory back (S11)"
        return error


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""  # the one that listed the folder is in the list


# Less memory than the largest tensors that are drawn need, so that it runs out by itself, too.
@pytest.mark.parametrize(
    ("machine", "memory"),
    [
        (HostMachine, "16MiB"),
        (FaultyMachine, "16MiB"),
        (DirtyMachine, "512KiB"),
        (DirtyFaultyMachine, "512KiB"),
        (UniformMachine, "512KiB"),
        (KeepingMachine, "512KiB"),
    ],
)
@pytest.mark.timeout(900)  # one that finds something is given the time to find the smallest example of it
def test_the_machine_finds_nothing(
    machine: type[TensorMachine],
    memory: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", memory)
    # The same examples everywhere, whatever the profile: the number of steps is part of what is tested.
    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=40, derandomize=True))
    record_property("counted: steps of the stateful machine", machine.steps)
    record_property("counted: injected faults", machine.injected)
    assert machine.steps >= FLOOR
    assert machine.injected >= FLOOR // 8 if machine.faults else machine.injected == 0
