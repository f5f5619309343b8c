"""What the driver's calls cost, what memory costs to have and to give back, and that it comes back."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

from benchmarks.on_device.record import CheckFailed, Context, check
from vmmcache import ExtensibleTensor, OutOfDeviceMemory, open_driver
from vmmcache.driver import VmmDriver
from vmmcache.units import GIB, MIB, align_down, format_bytes

__all__ = ["calls", "life", "memory_returns", "out_of_memory"]

ROUNDS: Final = 20
LIVES: Final = 5
SEGMENTS: Final = 8
PATTERN: Final = b"vmmcache"


def calls(context: Context, results: dict[str, Any]) -> None:
    """Microseconds of each verb for allocations of several sizes."""
    driver = open_driver(context.device)
    for size in 2 * MIB, 64 * MIB, GIB:
        nbytes = context.sized(size)
        figures: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            _one_of_each(driver, nbytes, figures)
        results[format_bytes(nbytes)] = {
            verb: {"best_us": min(values) * 1e6, "median_us": statistics.median(values) * 1e6}
            for verb, values in figures.items()
        }


def _one_of_each(driver: VmmDriver, nbytes: int, figures: dict[str, list[float]]) -> None:
    with driver.current():
        with _Timed(figures, "reserve"):
            reservation = driver.reserve(nbytes)
        with _Timed(figures, "create"):
            allocation = driver.create(nbytes)
        with _Timed(figures, "map"):
            mapping = driver.map(reservation, 0, allocation)
        with _Timed(figures, "grant"):
            driver.grant([mapping])
        with _Timed(figures, "zero"):
            driver.zero(mapping.address, nbytes)
        with _Timed(figures, "synchronise"):
            driver.synchronise()
        with _Timed(figures, "synchronise, idle"):
            driver.synchronise()
        with _Timed(figures, "unmap"):
            driver.unmap(mapping)
        with _Timed(figures, "release"):
            driver.release(allocation)
        with _Timed(figures, "free"):
            driver.free(reservation)


class _Timed:
    """Adds the seconds inside to a list of figures."""

    def __init__(self, figures: dict[str, list[float]], what: str) -> None:
        self._figures = figures.setdefault(what, [])

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._figures.append(time.perf_counter() - self._start)


def life(context: Context, results: dict[str, Any]) -> None:
    """Milliseconds per GiB: reserve, commit with zeroing, release, restore."""
    driver = open_driver(context.device)
    each = align_down(context.sized(min(2 * GIB, driver.memory_info().free // (2 * SEGMENTS))), driver.granule)
    figures: dict[str, list[float]] = {}
    for _ in range(LIVES):
        with _Timed(figures, "reserve"):
            tensor = ExtensibleTensor(SEGMENTS * each, driver, segments=SEGMENTS)
        with tensor:
            with _Timed(figures, "commit and zero"):
                tensor.commit(each)
            with _Timed(figures, "release"):
                tensor.release_physical()
            with _Timed(figures, "restore"):
                tensor.restore()
    gib = SEGMENTS * each / GIB
    results |= {"nbytes": SEGMENTS * each, "segments": SEGMENTS}
    results |= {f"{what}, ms per GiB": min(values) * 1000 / gib for what, values in figures.items()}


def memory_returns(context: Context, results: dict[str, Any]) -> None:
    """Free memory before, committed, asleep, awake and closed. Somebody else may use the device, so nine tenths do."""
    driver = open_driver(context.device)
    before = results["before"] = driver.memory_info().free
    results["source"] = driver.memory_info().source
    nbytes = align_down(min(context.sized(16 * GIB), before // 2), driver.granule)
    with ExtensibleTensor(nbytes, driver) as tensor:
        tensor.commit(nbytes)
        results["committed"] = driver.memory_info().free
        tensor.release_physical()
        results["asleep"] = driver.memory_info().free
        tensor.restore()
        results["awake"] = driver.memory_info().free
    results |= {"closed": driver.memory_info().free, "nbytes": nbytes}
    for taken in "committed", "awake":
        check(
            before - results[taken] >= nbytes * 9 // 10, f"{taken}: {before - results[taken]} of {nbytes} bytes taken"
        )
    for given in "asleep", "closed":
        check(before - results[given] <= nbytes // 10, f"{given}: {before - results[given]} bytes are still taken")


def out_of_memory(context: Context, results: dict[str, Any]) -> None:
    """Committing more than there is fails half-way and leaves everything as it was."""
    driver = open_driver(context.device)
    free = driver.memory_info().free
    each = align_down(free // (SEGMENTS - 2), driver.granule)
    with ExtensibleTensor(SEGMENTS * each, driver, segments=SEGMENTS) as tensor:
        tensor.commit(driver.granule)
        driver.write(tensor.base_address, PATTERN)
        before = tensor.committed, tensor.state, driver.held
        free = driver.memory_info().free
        start = time.perf_counter()
        try:
            tensor.commit(each)
        except OutOfDeviceMemory as error:
            results |= {"error": str(error), "seconds": time.perf_counter() - start, "free_said": error.free}
        else:
            raise CheckFailed(f"{SEGMENTS * each} bytes were committed, although {free} were free")
        after = driver.memory_info().free
        results |= {"asked": SEGMENTS * each, "free_before": free, "free_after": after}
        check((tensor.committed, tensor.state, driver.held) == before, f"{before} became {tensor!r}, {driver.held}")
        check(bytes(driver.read(tensor.base_address, len(PATTERN))) == PATTERN, "contents changed")
        check(free - after <= each // 2, f"{free - after} bytes did not come back")
        tensor.commit(2 * driver.granule)
