"""What growing and giving back cost, whatever the bytes (T4, B2).

In driver calls, which are the same on every machine: of the host driver by its journal, of the CUDA and HIP drivers by
the journal of the emulated vendor libraries. And in time above a C loop over the same emulated library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.emulated.growth import SEGMENTS, SHAPES, SIZES
from benchmarks.harness import Row, run
from tests.emulator.control import ROOT, Emulator, Vendor
from vmmcache.benchmarks.growth import measure as host_calls
from vmmcache.units import format_bytes

TITLE = "Growth: calls, and time above the bare calls (T4, B2)"
PROFILES: dict[Vendor, tuple[str, str]] = {"cuda": ("cuda-13", "cu"), "hip": ("hip-10.0", "hip")}
VMM_CALLS = ("Create", "Map", "SetAccess", "Unmap", "Release")
US_ABOVE = 25.0


def measure() -> Sequence[Row]:
    return [*host_calls(), *(row for vendor in PROFILES for row in _emulated(vendor))]


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
    sys.exit(run(TITLE, measure))
