"""Memory behind an ExtensibleTensor of the host is read and written at the speed of a plain torch tensor (B4).

All memory has been touched before anything is measured, so no page fault is in the figures. How fast pages are depends
on where they happen to lie in the machine, so each round takes new memory on both sides, and the best round counts. One
thread, so that the figures do not speak of how torch divides work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch

from vmmcache import ExtensibleTensor
from vmmcache.benchmarks.harness import QUICK_ROUNDS, ROUNDS, Row, mode, seconds
from vmmcache.units import GIB, MIB, format_bytes

__all__ = ["NEEDS", "TITLE", "measure"]

TITLE: Final = "Host driver: memory speed (B4)"
NEEDS: Final = ("torch",)

NBYTES: Final = 512 * MIB
TURNS: Final = 3
LOW: Final = 0.95
HIGH: Final = 1.05


def measure() -> Sequence[Row]:
    """Reading, filling and copying, against `torch.empty`."""
    torch.set_num_threads(1)
    source = torch.ones(NBYTES // 4)
    work: dict[str, Callable[[torch.Tensor], object]] = {
        "read: sum": torch.sum,
        "write: fill_": lambda memory: memory.fill_(2.0),
        "write: copy_": lambda memory: memory.copy_(source),
    }
    best: dict[tuple[str, str], float] = {}
    rounds = QUICK_ROUNDS if mode.quick else ROUNDS
    for number in range(rounds):
        if mode.progress is not None:
            mode.progress(number, rounds)
        with ExtensibleTensor(NBYTES, "host") as tensor:
            tensor.commit(NBYTES)
            sides = {"vmmcache": tensor.segment_view(0, torch.float32), "torch": torch.empty(NBYTES // 4)}
            for memory in sides.values():
                memory.fill_(1.0)
            for name, task in work.items():
                for turn in range(TURNS):
                    for side in list(sides)[:: -1 if turn % 2 else 1]:
                        memory = sides[side]
                        figure = seconds(partial(task, memory))
                        best[name, side] = min(figure, best.get((name, side), figure))
            del sides, memory
    return [_row(name, NBYTES / best[name, "vmmcache"], NBYTES / best[name, "torch"]) for name in work]


def _row(name: str, ours: float, plain: float) -> Row:
    return Row(
        f"{name} of {format_bytes(NBYTES)}",
        ours / GIB,
        "GiB/s",
        "torch.empty",
        plain / GIB,
        ours / plain,
        f"{LOW} to {HIGH} of plain torch",
        LOW <= ours / plain <= HIGH,
    )
