"""What torch sees: memory behind a view is as fast as memory of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

from benchmarks.on_device.record import Context, NotRun
from vmmcache import ExtensibleTensor, open_driver
from vmmcache.units import GIB, align_down

__all__ = ["bandwidth", "on_device", "torch_for"]

ROUNDS: Final = 9
TURNS: Final = 3
PIECES: Final = "in granules"
WORK: Final[dict[str, tuple[int, Callable[..., object]]]] = {
    "fill_": (1, lambda memory, other: memory.fill_(2.0)),
    "copy_": (2, lambda memory, other: memory.copy_(other)),
    "sum": (1, lambda memory, other: memory.sum()),
}
"""How often each moves the bytes of the memory, and the work."""


def torch_for(context: Context) -> ModuleType:
    """torch, where it can use the device; else NotRun with the reason."""
    if context.emulated is not None:
        raise NotRun("the device is emulated, and torch needs a real one")
    try:
        import torch
    except ModuleNotFoundError as error:
        raise NotRun(f"torch is not installed ({error})") from error
    if not torch.cuda.is_available():
        raise NotRun(f"torch {torch.__version__} finds no device")
    # Streams, events and graphs are made on the current device.
    torch.cuda.set_device(int(context.device.partition(":")[2] or 0))
    return torch


def bandwidth(context: Context, results: dict[str, Any]) -> None:
    """fill, copy and sum of a segment's view against torch.empty of the same size: best of interleaved rounds.

    Once as one allocation, which is what a commit makes, and once as an allocation for each granule, the worst that
    growing in small steps can lead to.
    """
    torch = torch_for(context)
    driver = open_driver(context.device)
    nbytes = align_down(min(4 * GIB, driver.memory_info().free // 8), driver.granule)
    best: dict[tuple[str, str], float] = {}
    with (
        ExtensibleTensor(nbytes, driver) as whole,
        ExtensibleTensor(nbytes, driver, chunk=driver.granule) as pieces,
    ):
        for tensor in whole, pieces:
            tensor.commit(nbytes)
        results |= {
            "nbytes": nbytes,
            "allocations": {"vmmcache": len(whole.allocations), PIECES: nbytes // whole.granule},
        }
        for _ in range(ROUNDS):
            _round(torch, {"vmmcache": whole, PIECES: pieces}, best)
            # New memory on torch's side each round: how fast it is depends on where it happens to lie.
            torch.cuda.empty_cache()
    for name, (traffic, _) in WORK.items():
        speeds = {side: nbytes * traffic / best[name, side] / GIB for side in ("vmmcache", PIECES, "torch")}
        results[name] = {f"{side}_gib_s": speed for side, speed in speeds.items()}
        results[name] |= {
            "ratio": speeds["vmmcache"] / speeds["torch"],
            f"ratio {PIECES}": speeds[PIECES] / speeds["torch"],
        }


def _round(torch: ModuleType, tensors: dict[str, ExtensibleTensor], best: dict[tuple[str, str], float]) -> None:
    sides = {name: tensor.segment_view(0, torch.float32) for name, tensor in tensors.items()}
    sides["torch"] = torch.empty_like(sides["vmmcache"])
    other = torch.ones_like(sides["torch"])
    for name, (_, task) in WORK.items():
        for turn in range(TURNS):
            for side in list(sides)[:: -1 if turn % 2 else 1]:
                seconds = on_device(torch, partial(task, sides[side], other))
                best[name, side] = min(seconds, best.get((name, side), seconds))


def on_device(torch: ModuleType, task: Callable[[], object]) -> float:
    """Seconds that a task takes on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    task()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
