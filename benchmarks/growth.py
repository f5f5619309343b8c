"""What growing and giving back cost, whatever the bytes (T4, B2).

In driver calls, which are the same on every machine: of the host driver by its journal, of the CUDA and HIP drivers by
the journal of the emulated vendor libraries. And in time above a C loop over the same emulated library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.emulated.growth import SEGMENTS, SHAPES, SIZES
from benchmarks.harness import Row, run
from tests.emulator.control import ROOT, Emulator, Vendor
from vmmcache import ExtensibleTensor, open_driver
from vmmcache.testing import RecordingDriver
from vmmcache.units import GIB, MIB, format_bytes

PROFILES: dict[Vendor, tuple[str, str]] = {"cuda": ("cuda-13", "cu"), "hip": ("hip-10.0", "hip")}
VMM_CALLS = ("Create", "Map", "SetAccess", "Unmap", "Release")
US_ABOVE = 25.0


def measure() -> Sequence[Row]:
    return [*_host(), *(row for vendor in PROFILES for row in _emulated(vendor))]


def _host() -> Sequence[Row]:
    driver = RecordingDriver(open_driver("host"))

    def row(what: str, work: Callable[[], object], expected: Counter[str]) -> Row:
        driver.journal.clear()
        work()
        calls = Counter(call.verb for call in driver.journal)
        counted = ", ".join(f"{verb} {count}" for verb, count in calls.items())
        target = f"exactly {expected.total()}"
        return Row(
            f"{what}: {counted}", calls.total(), "calls", judged=calls.total(), target=target, held=calls == expected
        )

    growth = Counter(create=1, map=1, grant=1)
    every = Counter(dict.fromkeys(growth, SEGMENTS))
    with ExtensibleTensor(SEGMENTS * 2 * GIB, driver, segments=SEGMENTS) as tensor:
        others = (0,) * (SEGMENTS - 1)
        return (
            row("one segment grows by 2 MiB", lambda: tensor.commit((2 * MIB, *others)), growth),
            row("one segment grows by 1 GiB", lambda: tensor.commit((1 * GIB, *others)), growth),
            row(
                "one segment shrinks by 2 allocations",
                lambda: tensor.commit(0),
                Counter(unmap=2, release=2, synchronise=1),
            ),
            row(f"{SEGMENTS} segments grow by 64 MiB each", lambda: tensor.commit(64 * MIB), every),
            row(
                f"{SEGMENTS} segments go to sleep",
                tensor.release_physical,
                Counter(unmap=SEGMENTS, release=SEGMENTS, synchronise=1),
            ),
            row(f"{SEGMENTS} segments wake", tensor.restore, every),
        )


def _emulated(vendor: Vendor) -> Iterator[Row]:
    profile, prefix = PROFILES[vendor]
    # New memory as it is: filling it with old bytes is the emulator's, and would be in the figures of both sides.
    emulator = Emulator(vendor, profile, dirty=0)
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.emulated.growth", vendor],
        env=emulator.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(child.stdout)
    growth = Counter({f"{prefix}Mem{call}": 1 for call in VMM_CALLS[:3]})
    release = Counter({f"{prefix}Mem{call}": SEGMENTS for call in VMM_CALLS[3:]})
    for nbytes in SIZES:
        yield _counted(
            f"{vendor}: one segment grows by {format_bytes(nbytes)}", found["calls"][f"grow {nbytes}"], growth, prefix
        )
    every = Counter(dict.fromkeys(growth, SEGMENTS))
    yield _counted(f"{vendor}: {SEGMENTS} segments go to sleep", found["calls"]["sleep"], release, prefix)
    yield _counted(f"{vendor}: {SEGMENTS} segments wake", found["calls"]["wake"], every, prefix)
    for shape, figures in found["seconds"].items():
        operations, segments = SHAPES[shape]
        for what, calls in ("grow", 3), ("give back", 2):
            ours, bare = (figures[side] / (operations * segments * calls) * 1e6 for side in (what, f"{what}, C"))
            how = f"{segments} segments at once" if operations == 1 else f"one segment, {operations} steps"
            yield Row(
                f"{vendor}: {what}, {how}, a VMM call",
                ours,
                "us",
                "C loop",
                bare,
                ours - bare,
                f"<= {US_ABOVE:g} us above",
                ours - bare <= US_ABOVE,
            )


def _counted(what: str, calls: dict[str, int], expected: Counter[str], prefix: str) -> Row:
    """VMM calls must be those expected. Beside them: zeroing of what is new, one wait, and the context once (T4)."""
    vmm = Counter({name: count for name, count in calls.items() if name.removeprefix(f"{prefix}Mem") in VMM_CALLS})
    beside = Counter(calls) - vmm
    waits = sum(count for name, count in beside.items() if "Synchronize" in name)
    zeroed = sum(count for name, count in beside.items() if "Memset" in name)
    context = beside.total() - waits - zeroed
    held = vmm == expected and waits == 1 and zeroed <= SEGMENTS and context <= 2
    text = ", ".join(f"{name.removeprefix(f'{prefix}Mem')} {count}" for name, count in vmm.items())
    also = ", ".join(f"{name.removeprefix(prefix)} {count}" for name, count in beside.items())
    return Row(
        f"{what}: {text} (beside: {also})",
        vmm.total(),
        "calls",
        judged=vmm.total(),
        target=f"exactly {expected.total()}, and one wait",
        held=held,
    )


if __name__ == "__main__":
    sys.exit(run("Growth: calls, and time above the bare calls (T4, B2)", measure))
