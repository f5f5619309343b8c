"""Growing in place against what torch offers for it: expandable segments, and a larger tensor to copy to (B6)."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from benchmarks.on_device.record import Context, check
from benchmarks.on_device.with_torch import torch_for
from vmmcache import ExtensibleTensor, VmmDriver, open_driver
from vmmcache.units import GIB, align_down

__all__ = ["expandable"]

ROUNDS: Final = 5
STEPS: Final = 8
SETTING: Final = "expandable_segments:True"

Figures = dict[str, list[float]]


def expandable(context: Context, results: dict[str, Any]) -> None:
    """Having zeroed memory, giving it back, and growing eightfold with the contents kept: best of interleaved rounds.

    A torch tensor cannot grow: a larger one is made, the contents are copied, and the smaller one goes. Both are there
    at that moment, which is the memory that growth in place does not need.
    """
    assert "torch" not in sys.modules  # the setting is read when torch first allocates
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTING
    torch = torch_for(context)
    driver = open_driver(context.device)
    nbytes = align_down(min(8 * GIB, driver.memory_info().free // 8), STEPS * driver.granule)
    torch.zeros(1, device=driver.torch_device)  # torch's context is no part of what is measured
    figures, taken = Figures(), dict[str, int]()
    for _ in range(ROUNDS):
        _ours(driver, nbytes, figures, taken)
        _torchs(torch, driver, nbytes, figures, taken)
    results |= {"nbytes": nbytes, "steps": STEPS, "most bytes while growing": taken}
    results["segments are expandable"] = _are_expandable(torch, driver)
    for what in "have", "give back", "grow":
        ours, plain = (figures[f"{side}, {what}"] for side in ("vmmcache", "torch"))
        results[what] = {
            "vmmcache_ms": min(ours) * 1e3,
            "torch_ms": min(plain) * 1e3,
            "vmmcache_median_ms": statistics.median(ours) * 1e3,
            "torch_median_ms": statistics.median(plain) * 1e3,
            "ratio": min(ours) / min(plain),
        }
    slack = nbytes // STEPS
    check(taken["vmmcache"] <= nbytes + slack, f"growing in place took {taken['vmmcache']} bytes for {nbytes}")


@contextmanager
def _timed(torch: ModuleType, figures: Figures, what: str) -> Iterator[None]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    yield
    torch.cuda.synchronize()
    figures.setdefault(what, []).append(time.perf_counter() - start)


def _ours(driver: VmmDriver, nbytes: int, figures: Figures, taken: dict[str, int]) -> None:
    import torch

    step, before = nbytes // STEPS, driver.memory_info().free
    with ExtensibleTensor(nbytes, driver) as tensor:
        with _timed(torch, figures, "vmmcache, have"):
            tensor.commit(nbytes)
        with _timed(torch, figures, "vmmcache, give back"):
            tensor.release_physical()
    with ExtensibleTensor(nbytes, driver) as tensor:
        with _timed(torch, figures, "vmmcache, grow"):
            for steps in range(1, STEPS + 1):
                tensor.commit(steps * step)
        taken["vmmcache"] = before - driver.memory_info().free


def _torchs(torch: ModuleType, driver: VmmDriver, nbytes: int, figures: Figures, taken: dict[str, int]) -> None:
    device, step = driver.torch_device, nbytes // STEPS
    torch.cuda.empty_cache()
    with _timed(torch, figures, "torch, have"):
        memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    with _timed(torch, figures, "torch, give back"):
        del memory
        torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    with _timed(torch, figures, "torch, grow"):
        memory = torch.zeros(step, dtype=torch.uint8, device=device)
        for steps in range(2, STEPS + 1):
            larger = torch.zeros(steps * step, dtype=torch.uint8, device=device)
            larger[: memory.numel()].copy_(memory)
            memory = larger
        del larger
    taken["torch"] = torch.cuda.max_memory_reserved(device)
    del memory
    torch.cuda.empty_cache()


def _are_expandable(torch: ModuleType, driver: VmmDriver) -> bool:
    """Whether the setting was heard: what is not supported is ignored."""
    memory = torch.zeros(1 << 20, dtype=torch.uint8, device=driver.torch_device)
    segments = torch.cuda.memory_snapshot()
    del memory
    return any(segment.get("is_expandable", False) for segment in segments)
