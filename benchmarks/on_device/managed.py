"""A KVCacheManager's life on the device, by what the device says is free, and graphs that live through it (S2, T10)."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeVar

from benchmarks.on_device.record import Context, NotRun, check
from benchmarks.on_device.with_torch import on_device, torch_for
from vmmcache import KVCacheManager, MemoryBudget, VmmDriver, open_driver
from vmmcache.cache.warmup import WarmupLog
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Request
from vmmcache.planning.warmup import EngineLimits
from vmmcache.units import GIB, KIB, MIB

__all__ = ["graphs", "life"]

LAYOUT: Final = CacheLayout(16, [Attention([Buffer("key", 32 * KIB), Buffer("value", 32 * KIB)], count=32)])
"""32 layers with 8 key-value heads of 128 in two bytes: 2 MiB a block of 16 tokens."""
LONGEST: Final = 256
WARM: Final = 16
"""Slots that warm-up addresses."""
REPLAYS: Final = 30
TOUCHED: Final = 8
"""Slots that graphs write."""
EMULATED_SHARE: Final = 0.125
"""Of an emulated device, which has no more than the machine that it runs on."""

Result = TypeVar("Result")


def _made(context: Context, driver: VmmDriver, nbytes: int | None = None) -> KVCacheManager:
    share = None if context.emulated is None or nbytes is not None else EMULATED_SHARE
    return KVCacheManager(
        LAYOUT,
        driver,
        MemoryBudget(utilization=share, nbytes=nbytes, margin_floor=context.sized(256 * MIB)),
        [Batch([Request(LONGEST, LONGEST - 1)])],
        limits=EngineLimits(LONGEST, LONGEST),
        vmm=True,
    )


def life(context: Context, results: dict[str, Any]) -> None:
    """Construct, ensure, warm up with a peak, finalize, serve, resize, sleep, wake, close; free memory after each."""
    driver = open_driver(context.device)
    peak = context.sized(2 * GIB)
    torch: ModuleType | None = None
    try:
        torch = torch_for(context)
        torch.zeros(1, device=driver.torch_device)  # its context is no part of the peak
        results["transient peak"] = f"{peak} bytes of torch's"
    except NotRun as why:
        results["transient peak"] = f"none: {why}"
    free: dict[str, int] = {"before": driver.memory_info().free}
    took: dict[str, float] = {}
    results |= {"free": free, "ms": took}

    def step(name: str, work: Callable[[], Result]) -> Result:
        start = time.perf_counter()
        result = work()
        driver.synchronise()
        took[name] = (time.perf_counter() - start) * 1e3
        if torch is not None:
            torch.cuda.empty_cache()
        free[name] = driver.memory_info().free
        return result

    manager = step("construct", lambda: _made(context, driver))
    with manager:
        check(manager.mode == "measured", f"{manager.mode}: {manager.fallback_reason}")
        step("ensure", lambda: manager.ensure(WARM))
        with manager.warm_up() as warm:
            _peak(torch, driver, peak)
            _log(warm)
        report = step("finalize", manager.finalize)
        budget, estimate = report.budget, report.estimate
        assert budget is not None
        results |= {
            "nbytes": report.nbytes,
            "slots": list(manager.committed),
            "budget": {**budget._asdict(), "utilization": float(budget.utilization)},
            "estimate of 0.92": None if estimate is None else estimate.nbytes,
            "more than estimated": None if estimate is None else report.nbytes - estimate.nbytes,
            "peak_source": report.peak_source,
        }
        check(0 < report.nbytes <= budget.nbytes, f"{report.nbytes} bytes committed of a budget of {budget.nbytes}")
        _taken(free, "finalize", report.nbytes)
        if torch is not None:
            check(
                budget.transient_peak >= peak * 15 // 16, f"a peak of {peak} bytes was seen as {budget.transient_peak}"
            )
        # What was measured is still to be had beside the cache, or the cache is too large.
        _peak(torch, driver, peak)
        _slots(manager, results)
        step("resize to half", lambda: manager.resize(report.nbytes // 2))
        check(free["resize to half"] > free["finalize"], f"a smaller cache left no more free: {free}")
        step("resize back", lambda: manager.resize(report.nbytes))
        _taken(free, "resize back", report.nbytes)
        there = [(each.base, each.nbytes) for each in manager.memory.registrable()]
        slept = step("sleep", manager.sleep)
        assert slept is not None
        results |= {"released": slept.released, "came_back": slept.came_back, "source": slept.source}
        _given(free, "sleep", report.nbytes)
        step("wake", manager.wake)
        _taken(free, "wake", report.nbytes)
        again = [(each.base, each.nbytes) for each in manager.memory.registrable()]
        check(again == there, f"{there[:2]} came back as {again[:2]}")
        step("close", manager.close)
        _given(free, "close", report.nbytes)


def _peak(torch: ModuleType | None, driver: VmmDriver, nbytes: int) -> None:
    """Take so much from torch, use it, and let it go."""
    if torch is not None:
        activations = torch.empty(nbytes, dtype=torch.uint8, device=driver.torch_device)
        activations.fill_(1)
        torch.cuda.synchronize()


def _log(warm: WarmupLog) -> None:
    warm.ran("mixed_step", tokens=LONGEST)
    for shape in "prompt_logprobs", "sampler", "rejection_sampler", "encoder", "largest_graph":
        warm.skipped(shape, "there is no model here")


def _slots(manager: KVCacheManager, results: dict[str, Any]) -> None:
    """Requests until no other fits; a suspended one comes back."""
    slots = manager.slots
    longest = slots.longest()
    check(longest >= LONGEST, f"{longest} tokens fit, and {LONGEST} were declared")
    request = slots.allocate(longest)
    check(not slots.fits(LAYOUT.tokens_per_block), "more fits beside the longest request")
    slots.suspend(request)
    check(slots.resume(request), "a suspended request was not resumed, alone on the device")
    slots.free(request)
    results["longest request, tokens"] = longest


def _taken(free: dict[str, int], name: str, nbytes: int) -> None:
    taken = free["before"] - free[name]
    check(taken >= nbytes * 9 // 10, f"{name}: {taken} of {nbytes} bytes are taken")


def _given(free: dict[str, int], name: str, nbytes: int) -> None:
    left = free["before"] - free[name]
    check(left <= nbytes // 10, f"{name}: {left} of {nbytes} bytes are still taken")


def graphs(context: Context, results: dict[str, Any]) -> None:
    """A graph captured in warm-up over a view of the whole capacity replays after finalize, resize, sleep and wake."""
    torch = torch_for(context)
    driver = open_driver(context.device)
    nbytes = 4 * GIB
    with _made(context, driver, nbytes) as manager:
        manager.ensure(WARM)
        first = manager.views()["layers.0"]["key"]
        address = results["address"] = first.data_ptr()
        with manager.warm_up() as warm:
            graph = _captured(torch, first[:TOUCHED])
            _log(warm)
        results |= {"replayed after": [], "replay, us": {"warm-up": _microseconds(torch, graph)}}
        del first
        manager.finalize()
        _replay(torch, graph, manager, address, "finalize", results)
        manager.resize(nbytes // 2)
        _replay(torch, graph, manager, address, "resize to half", results)
        manager.resize(nbytes)
        _replay(torch, graph, manager, address, "resize back", results)
        # Nobody waits for what was replayed: giving memory back does (I8).
        graph.replay()
        manager.sleep()
        manager.wake()
        view = manager.views()["layers.0"]["key"]
        check(not view.any().item(), "memory is not zero after wake")
        del view
        _replay(torch, graph, manager, address, "sleep and wake", results)
        del graph


def _captured(torch: ModuleType, view: Any) -> Any:
    """A graph that adds one to every byte of a view; as torch's documentation has it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            view.add_(1)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view.add_(1)
    return graph


def _replay(
    torch: ModuleType, graph: Any, manager: KVCacheManager, address: int, after: str, results: dict[str, Any]
) -> None:
    view = manager.views()["layers.0"]["key"]
    check(view.data_ptr() == address, f"after {after} the view is at {view.data_ptr():#x}, and was at {address:#x}")
    view.zero_()
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    check(view[:TOUCHED].unique().tolist() == [2], f"after {after} the graph has not written what it should")
    check(not view[TOUCHED:].any().item(), f"after {after} the graph has written where it should not")
    results["replayed after"].append(after)
    results["replay, us"][after] = _microseconds(torch, graph)


def _microseconds(torch: ModuleType, graph: Any) -> float:
    """Of one replay on the device, at best: addresses that stay should not get slower either."""
    return min(on_device(torch, graph.replay) for _ in range(REPLAYS)) * 1e6
