"""The host driver against a bare loop of the system calls that it needs: what the accounts in between cost (B4).

Both sides reserve addresses beforehand and touch the memory with the same code. The bare loop maps readable and
writable at once and keeps no account of anything.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Final

from vmmcache import ExtensibleTensor, open_driver
from vmmcache.benchmarks.harness import Row, best_in_turns, mode, seconds
from vmmcache.units import GIB, MIB, align_down, format_bytes

__all__ = ["TITLE", "measure"]

TITLE: Final = "Host driver: commit (B4)"

SEGMENTS: Final = 64
TOTAL: Final = 8 * GIB
QUICK_TOTAL: Final = 128 * MIB
TOUCH_ROUNDS: Final = 5
TOUCH_RATIO: Final = 0.95
COMMIT_US: Final = 25.0

_FIXED, _NORESERVE = 0x10, 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def measure() -> Sequence[Row]:
    """Committing with and without touching, against the bare loop."""
    # Room for the page tables, and for the rest of the machine: less than 8 GiB where 8 GiB are not to be had.
    free = open_driver("host").memory_info().free
    each = min(QUICK_TOTAL if mode.quick else TOTAL, align_down(free * 3 // 4, SEGMENTS * 2 * MIB)) // SEGMENTS
    touched = best_in_turns(
        {"vmmcache": lambda: _vmmcache(each, touch=True), "bare": lambda: _bare(each, touch=True)}, TOUCH_ROUNDS
    )
    alone = best_in_turns({"vmmcache": lambda: _vmmcache(each, touch=False), "bare": lambda: _bare(each, touch=False)})
    speed = touched["bare"] / touched["vmmcache"]
    ours, bare = (alone[side] / SEGMENTS * 1e6 for side in ("vmmcache", "bare"))
    size = f"{format_bytes(each * SEGMENTS)} in {SEGMENTS} segments"
    return (
        Row(
            f"commit and first touch, {size}",
            touched["vmmcache"],
            "s",
            "bare loop",
            touched["bare"],
            speed,
            f">= {TOUCH_RATIO} of the bare loop's speed",
            speed >= TOUCH_RATIO,
        ),
        Row(
            "commit without touch, a segment",
            ours,
            "us",
            "bare loop",
            bare,
            ours - bare,
            f"<= {COMMIT_US:g} us above",
            ours - bare <= COMMIT_US,
        ),
    )


def _vmmcache(each: int, *, touch: bool) -> float:
    with ExtensibleTensor(each * SEGMENTS, "host", segments=SEGMENTS) as tensor:

        def work() -> None:
            tensor.commit(each)
            if touch:
                _touch(tensor.base_address, each)

        return seconds(work)


def _bare(each: int, *, touch: bool) -> float:
    base = _mmap(None, each * SEGMENTS, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1)
    files: list[int] = []

    def work() -> None:
        for place in range(SEGMENTS):
            file = os.memfd_create("bare", os.MFD_CLOEXEC)
            files.append(file)
            os.ftruncate(file, each)
            _mmap(base + place * each, each, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED, file)
        if touch:
            _touch(base, each)

    try:
        return seconds(work)
    finally:
        _libc.munmap(base, each * SEGMENTS)
        for file in files:
            os.close(file)


def _touch(base: int, each: int) -> None:
    for place in range(SEGMENTS):
        ctypes.memset(base + place * each, 1, each)


def _mmap(address: int | None, nbytes: int, access: int, kind: int, file: int) -> int:
    mapped: int | None = _libc.mmap(address, nbytes, access, kind, file, 0)
    if mapped is None or mapped == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes")
    return mapped
