"""Counts calls and times growth on the emulated library of one vendor. ``python -m benchmarks.emulated.growth VENDOR``.

In a process of its own, which finds the library where the vendor's would be. Prints one JSON object: the calls of each
operation, and seconds of growing and giving back beside those of a C loop over the same calls, in turns.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import ROUNDS, seconds
from tests.emulator import build
from tests.emulator.control import Control
from vmmcache import ExtensibleTensor, open_driver
from vmmcache.units import GIB, MIB

__all__ = ["main"]

SEGMENTS: Final = 64
SIZES: Final = (1 * MIB, 64 * MIB, 1 * GIB)
GRANULE: Final = 2 * MIB
SHAPES: Final = {"segments": (1, SEGMENTS), "steps": (16, 1)}
"""Operations, and segments of each: all at once, and one segment that grows step by step. A millisecond or less: what
takes longer is interrupted in every round on a machine that has other things to do."""


def main(vendor: str) -> dict[str, Any]:
    device = f"{vendor}:0"
    if open_driver(device).granule != GRANULE:
        raise RuntimeError(f"{device} maps in other units than {GRANULE} bytes; the comparison is made for that")
    return {"calls": _calls(device), "seconds": _times(device, vendor)}


def _calls(device: str) -> dict[str, dict[str, int]]:
    """Calls of the vendor's library, by operation."""
    control = Control.here()
    counts: dict[str, dict[str, int]] = {}

    def count(what: str, work: Callable[[], object]) -> None:
        mark = control.mark()
        work()
        counts[what] = dict(Counter(control.calls(mark)))

    with ExtensibleTensor(2 * SEGMENTS * GIB, device, segments=SEGMENTS) as tensor:
        others = (0,) * (SEGMENTS - 1)
        for nbytes in SIZES:
            count(f"grow {nbytes}", partial(tensor.commit, (nbytes, *others)))
            tensor.commit(0)
        tensor.commit(GRANULE)
        count("sleep", tensor.release_physical)
        count("wake", tensor.restore)
    return counts


def _times(device: str, vendor: str) -> dict[str, dict[str, float]]:
    """Best seconds of each shape: ours and the C loop's, which take turns.

    Neither zeroes what is new. The processor would zero it here, and that would be nine tenths of both figures.
    """
    type(open_driver(device)).fresh_is_zero = True
    bare = _bare()
    _checked(bare.start(os.environ["VMMEMU_LIBRARY"].encode(), int(vendor == "hip"), SEGMENTS, GRANULE))
    results: dict[str, dict[str, float]] = {}
    for name, (operations, segments) in SHAPES.items():
        shape = operations, segments, GRANULE
        best: dict[str, float] = {}
        with ExtensibleTensor(SEGMENTS * GRANULE, device, segments=segments) as tensor:
            turns: list[tuple[str, Callable[[], float]]] = [
                ("grow", partial(seconds, partial(_grow, tensor, operations))),
                ("give back", partial(seconds, partial(tensor.commit, 0))),
                ("grow, C", partial(_timed, bare.grow, shape)),
                ("give back, C", partial(_timed, bare.give_back, shape)),
            ]
            for number in range(ROUNDS):
                # Who comes first changes from round to round; what was grown is given back next.
                for turn, figure in turns[2:] + turns[:2] if number % 2 else turns:
                    best[turn] = min(figure(), best.get(turn, float("inf")))
        results[name] = best
    _checked(bare.finish(SEGMENTS, GRANULE))
    return results


def _grow(tensor: ExtensibleTensor, operations: int) -> None:
    for step in range(operations):
        tensor.commit((step + 1) * GRANULE)


def _bare() -> ctypes.CDLL:
    source = Path(__file__).with_name("bare.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "bare.so"
        build.run(
            build.compiler(),
            *build.FLAGS,
            "-Wno-strict-prototypes",
            "-fvisibility=default",
            "-shared",
            source,
            "-ldl",
            "-o",
            library,
        )
        bare = ctypes.CDLL(str(library))
    sizes = [ctypes.c_size_t] * 3
    bare.start.argtypes = (ctypes.c_char_p, ctypes.c_int, *sizes[:2])
    bare.grow.argtypes = bare.give_back.argtypes = sizes
    bare.finish.argtypes = sizes[:2]
    for function in "start", "grow", "give_back", "finish":
        getattr(bare, function).restype = ctypes.c_double
    return bare


def _timed(function: Callable[..., float], shape: tuple[int, ...]) -> float:
    return _checked(function(*shape))


def _checked(figure: float) -> float:
    """The figure, unless it says which call failed."""
    if figure < 0:
        raise RuntimeError(f"call number {-int(figure) - 1} of bare.c failed")
    return figure


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
