"""The questions, in the order in which they are asked, and how long each may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from benchmarks.on_device import driver_calls, engine, expandable, handing_on, machine, managed, suites, with_torch
from benchmarks.on_device.record import Context

__all__ = ["ALL_S", "SECTIONS", "Question"]

ALL_S: Final = 270.0
"""For all sections together: a machine with a device is often had for minutes."""


class Question(NamedTuple):
    """What is asked, and the most seconds that it may take."""

    ask: Callable[[Context, dict[str, Any]], None]
    limit_s: float = 40.0


# What is promised comes first, then how fast it is: where the time is over, figures are missing.
SECTIONS: Final[dict[str, Question]] = {
    "machine": Question(machine.machine, 100.0),
    "probe": Question(suites.probed, 70.0),
    "selftest": Question(suites.selftest, 90.0),
    "memory returns": Question(driver_calls.memory_returns),
    "out of memory": Question(driver_calls.out_of_memory),
    "handles": Question(handing_on.handles),
    "sharing": Question(handing_on.sharing),
    "gpu tests": Question(suites.gpu_tests, 90.0),
    "manager graphs": Question(managed.graphs, 60.0),
    "manager": Question(managed.life, 60.0),
    "engine": Question(engine.engine, 90.0),
    "driver calls": Question(driver_calls.calls),
    "life": Question(driver_calls.life),
    "bandwidth": Question(with_torch.bandwidth),
    "expandable segments": Question(expandable.expandable),
}
